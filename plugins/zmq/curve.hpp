// SPDX-License-Identifier: Apache-2.0
//
// CURVE in jobs with a secret: each rank has a key pair per group. Its public key is in the store, which only ranks of
// the job can write, beside its endpoint, so a connection reaches that rank and no other. The rank accepts (ZAP, RFC
// 27) only peers whose keys are in the store.
#pragma once

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
KeyPair draw_key_pair();

// Overwrites it.
void forget(std::string& key);

// What libzmq asks about each connection whose handshake has come to its end: may the owner of this key come in? Not
// thread-safe, never blocks.
class Admission {
 public:
  // Must be made before the socket that it guards listens, and be closed after it: without a ZAP handler libzmq accepts
  // every client that knows the listener's key.
  explicit Admission(::zmq::context_t& context);

  // Becomes readable when a client may be waiting; like ZMQ_FD, only after waiting() was empty.
  int descriptor();
  // The public key of the client that waits for a decision; it does not change until answer().
  const std::optional<std::string>& waiting();
  // Accepts the waiting client as that rank, or refuses it (-1).
  void answer(int32_t rank);
  void close();

  // The rank as which the sender of a message was let in, -1 if it was not asked for.
  static int32_t rank_of(const ::zmq::message_t& frame);

 private:
  ::zmq::socket_t socket_;
  std::optional<std::string> waiting_;
  std::string request_;  // its id
};

// Makes `listening` a socket that only lets in whom an Admission of the same context does.
void guard(::zmq::socket_t& listening, const KeyPair& own);

}  // namespace backplane::zmq
