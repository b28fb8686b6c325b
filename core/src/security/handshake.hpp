// SPDX-License-Identifier: Apache-2.0
//
// Key agreement and frame encryption of a TCP store's connection, for processes that hold the job's secret. Like
// Noise's NNpsk0: each end creates an X25519 key pair for this connection. The session keys are a BLAKE2b hash, keyed
// by the secret, of the protocol name, both public keys and their shared point. A recording cannot be replayed, nor
// decrypted by an attacker who learns the secret later. A man in the middle without the secret gets different keys.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "security/secret.hpp"

namespace backplane::core {

inline constexpr size_t kSealBytes = 16;  // by which sealing extends a frame

// The keys of one connection.
struct SessionKeys {
  Key to_server;
  Key to_client;
};

class KeyExchange {
 public:
  enum class End { kClient, kServer };

  // Creates the key pair of this end.
  explicit KeyExchange(End end);

  // kKeySize bytes, for the other end.
  const std::string& public_key() const { return public_key_; }
  // The keys of the connection. Nothing if the other public key is invalid (wrong size or small order).
  std::optional<SessionKeys> agree(const Secret& secret, std::string_view other) const;

 private:
  const End end_;
  Key private_key_;
  std::string public_key_;
};

// One direction of a connection: ChaCha20-Poly1305 with the number of the frame as nonce. Detects frames that are
// changed, dropped, repeated or reordered. Not synchronised.
class Sealer {
 public:
  explicit Sealer(const Key& key) : key_(key) {}
  // The frame of head and payload: its size in 4 bytes, then the sealed bytes.
  std::string seal(std::string_view head, std::string_view payload = {});

 private:
  const Key key_;
  uint64_t count_ = 0;
};

class Opener {
 public:
  explicit Opener(const Key& key) : key_(key) {}
  // Decrypts the body of a frame in place. Nothing if it is not authentic: then the connection must be closed.
  std::optional<std::string_view> open(std::span<char> body);

 private:
  const Key key_;
  uint64_t count_ = 0;
};

}  // namespace backplane::core
