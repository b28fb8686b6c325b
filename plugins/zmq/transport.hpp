// SPDX-License-Identifier: Apache-2.0
//
// The two sockets of a rank: one ROUTER that listens, for all and for those of the same host apart, and is only read
// from (but for answers along the same connection), one ROUTER that dials each peer when it is first needed and is only
// written to (but for those answers). A connection that breaks stays broken until it is dialled anew: behind it may be
// another process, and only the caller knows what is lost with it.
//
// Nothing here blocks but shut_down(). Not thread-safe: guarded by the group's mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>
#include <zmq.hpp>

#include "curve.hpp"
#include "options.hpp"

namespace backplane::zmq {

enum class Sent {
  kYes,
  kFull,  // no room in libzmq: try again when a descriptor has become readable
  kGone   // there is no connection (any more)
};

// A message as it came in. `body` is empty unless there was a second frame.
struct Inbound {
  ::zmq::message_t route;  // which connection; for reply()
  ::zmq::message_t frame;
  ::zmq::message_t body;
  size_t frames = 0;  // behind the route; 3 stands for any larger number
};

// Takes a frame without blocking; false if there is none.
bool receive(::zmq::message_t& frame, ::zmq::socket_t& socket);

class Sockets {
 public:
  // Listens on a port that the system chooses; `secure`: only for those whom admission() lets in. Throws Failure.
  Sockets(const Settings& settings, bool secure);
  ~Sockets();
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  const std::string& endpoint() const { return endpoint_; }  // "tcp://127.0.0.1:40123"
  // For ranks of the same host, "" unless the option says so: "ipc://@backplane/<host_identity()>/<random>". An
  // abstract name, so that there is no file; who can connect is who can connect to a port of the loopback interface.
  const std::string& local_endpoint() const { return local_endpoint_; }
  // By which this rank is known, "" unless secure.
  const std::string& public_key() const { return own_.public_key; }
  bool secure() const { return admission_.has_value(); }
  // Who wants to be let in; only if secure.
  Admission& admission() { return *admission_; }
  // Readable when there may be something to receive or room to send. The readiness is that of ZMQ_FD: it may only be
  // waited for after everything was received.
  std::vector<int> descriptors();

  // Throws ::zmq::error_t if the endpoint is malformed, or the key of a rank that is to be known by one.
  void dial(int32_t rank, const std::string& endpoint, const std::string& public_key);
  // Drops the connection with everything that waits in it.
  void hang_up(int32_t rank);

  // Begins a message to a rank. After kYes its frames follow by part(); they cannot fail.
  Sent begin(int32_t rank);
  void part(::zmq::message_t& frame, bool more);
  // Answers along a connection that was dialled from the other side. Best effort.
  void reply(const std::string& route, ::zmq::message_t frame);

  // The next message from the ranks that dialled this one; false if there is none.
  bool receive(Inbound& message) { return receive_from(listening_, message); }
  // The same with all its frames, for messages of any number of them.
  bool receive(::zmq::message_t& route, std::vector<::zmq::message_t>& frames);
  // The next answer from a rank that this one dialled.
  bool receive_reply(Inbound& message) { return receive_from(dialling_, message); }
  // The rank whose connection has broken, or could not be made.
  std::optional<int32_t> broken();

  // Closes the sockets. Messages still inside get that long in the background.
  void close(std::chrono::milliseconds linger_dialled, std::chrono::milliseconds linger_listening);
  // Waits for that background; afterwards libzmq holds no buffer, descriptor or thread.
  void shut_down();

  // The rank that a route of receive_reply() belongs to.
  static int32_t rank_of(const ::zmq::message_t& route);

 private:
  static bool receive_from(::zmq::socket_t& socket, Inbound& message);
  void listen();

  const Settings settings_;
  KeyPair own_;
  ::zmq::context_t context_;
  std::optional<Admission> admission_;
  ::zmq::socket_t listening_;
  ::zmq::socket_t dialling_;
  ::zmq::socket_t events_;  // what becomes of the dialled connections
  std::string endpoint_;
  std::string local_endpoint_;
  std::unordered_map<std::string, int32_t> ranks_;  // by endpoint
  struct Dialled {
    std::string endpoint;
    std::string route;  // another one each time: libzmq may still have the last one's
  };
  std::unordered_map<int32_t, Dialled> dialled_;
  uint32_t dials_ = 0;
};

}  // namespace backplane::zmq
