// SPDX-License-Identifier: Apache-2.0
//
// How two ends of a connection of the TCP store come to keys that only holders of the job's secret have, and how frames
// are sealed with them. Like Noise's NNpsk0: each end draws a key pair for this connection alone (X25519); the keys are
// a keyed hash (BLAKE2b, by the secret) of the protocol, both public keys, and what both multiply to. So a recording
// can neither be played again nor read by somebody who learns the secret later, and who sits in between without the
// secret comes to other keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "security/secret.hpp"

namespace backplane::core {

inline constexpr size_t kSealBytes = 16;  // by which a frame grows when it is sealed

// Of one connection.
struct SessionKeys {
  Key to_server;
  Key to_client;
};

class KeyExchange {
 public:
  enum class End { kClient, kServer };

  // Draws the key pair of this end.
  explicit KeyExchange(End end);

  // kKeySize bytes, for the other end.
  const std::string& public_key() const { return public_key_; }
  // The keys of the connection, nothing if the other's public key is none (of a wrong size or of small order).
  std::optional<SessionKeys> agree(const Secret& secret, std::string_view other) const;

 private:
  const End end_;
  Key private_key_;
  std::string public_key_;
};

// One direction of a connection: ChaCha20-Poly1305 with a count of the frames as nonce, so that frames that are
// changed, left out, repeated or in another order are noticed. Not synchronised.
class Sealer {
 public:
  explicit Sealer(const Key& key) : key_(key) {}
  // A whole frame for head and payload: its size in 4 bytes, then the sealed bytes.
  std::string seal(std::string_view head, std::string_view payload = {});

 private:
  const Key key_;
  uint64_t count_ = 0;
};

class Opener {
 public:
  explicit Opener(const Key& key) : key_(key) {}
  // Turns what followed a frame's size into what was sealed, in place. False if it was not sealed so: then the
  // connection is over.
  bool open(std::string& body);

 private:
  const Key key_;
  uint64_t count_ = 0;
};

}  // namespace backplane::core
