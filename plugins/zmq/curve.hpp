// SPDX-License-Identifier: Apache-2.0
//
// Who may connect to a rank. libzmq asks a ZAP handler (RFC 27) before it receives messages from a client.
//
// Without a secret, a client sends a token from the store (PLAIN). Other clients cannot make this process store their
// messages.
//
// CURVE in jobs with a secret: each rank has a key pair per group. It publishes its public key with its endpoint in the
// store, which only ranks of the job can write, so a connection reaches that rank and no other. The rank accepts only
// peers whose keys are in the store.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <zmq.hpp>

namespace backplane::zmq {

inline constexpr size_t kCurveKeySize = 40;  // characters of Z85

struct KeyPair {
  std::string public_key;
  std::string private_key;
};

// Throws Failure(BP_UNSUPPORTED) if this libzmq has no CURVE.
KeyPair make_key_pair();

// Overwrites and clears the key.
void erase_key(std::string& key);

// The ZAP handler of a context: libzmq asks it whether to accept a client, once per handshake. Not thread-safe, never
// blocks.
class ZapHandler {
 public:
  // Construct it before the socket that it protects listens, and close it after that socket: without a ZAP handler
  // libzmq accepts every client that knows the listener's key.
  explicit ZapHandler(::zmq::context_t& context);

  // Becomes readable when a request may be pending; like ZMQ_FD, only after pending() was empty.
  int descriptor();
  // The public key or the token of the client of the oldest request. Unchanged until answer(). Stays empty for kPause
  // after it was empty, and the descriptor readable: a busy group asks with each message, and libzmq makes several
  // system calls for each answer.
  static constexpr std::chrono::microseconds kPause{50};
  const std::optional<std::string>& pending();
  // Accepts that client as this rank, or refuses it (-1).
  void answer(int32_t rank);
  void close();

  // The rank as which the sender of a message was accepted; -1 if its socket is not protected.
  static int32_t rank_of(const ::zmq::message_t& frame);

 private:
  ::zmq::socket_t socket_;
  std::optional<std::string> pending_;
  std::string request_;                             // id of the oldest request
  std::chrono::steady_clock::time_point empty_at_;  // when the socket had no request
};

// Makes `listening` ask the ZapHandler of its context about tokens.
void require_token(::zmq::socket_t& listening);

// Makes `listening` accept only clients that the ZapHandler of its context accepts.
void require_curve(::zmq::socket_t& listening, const KeyPair& own);

}  // namespace backplane::zmq
