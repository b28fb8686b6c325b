// SPDX-License-Identifier: Apache-2.0
//
// The two ROUTER sockets of a rank. One listens, on TCP and optionally on a local socket, and receives; it sends only
// replies. The other dials each peer at first use and sends; it receives only replies. A broken connection is not
// re-established, since another process may answer, and only the caller knows what was lost.
//
// Only shut_down() blocks. Not thread-safe: guarded by the group's mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>
#include <zmq.hpp>

#include "curve.hpp"
#include "limiter.hpp"
#include "options.hpp"

namespace backplane::zmq {

enum class Sent {
  kYes,
  kFull,         // no room in libzmq: retry when a descriptor has become readable
  kNotConnected  // never dialled, or broken
};

// A received message. `body` is empty unless there was a second frame.
struct Inbound {
  ::zmq::message_t route;  // its connection, for reply()
  ::zmq::message_t frame;
  ::zmq::message_t body;
  size_t frames = 0;  // after the route; 3 means 3 or more
};

// Takes a frame without blocking; false if there is none.
bool receive(::zmq::message_t& frame, ::zmq::socket_t& socket);

class Sockets {
 public:
  // Listens on a port that the system chooses. Accepts only clients that zap() accepts: by their keys if `secure`, else
  // by their tokens. `peers`: the number of ranks that may connect. Throws Failure.
  Sockets(const Settings& settings, bool secure, size_t peers);
  ~Sockets();
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  const std::string& endpoint() const { return endpoint_; }  // "tcp://127.0.0.1:40123"
  // For ranks of the same host, "" without transport=ipc: "ipc://@backplane/<host_identity()>/<random>". An abstract
  // name has no file, and every process that can connect to a loopback port can connect to it.
  const std::string& local_endpoint() const { return local_endpoint_; }
  // This rank's key, "" unless secure.
  const std::string& public_key() const { return own_.public_key; }
  bool secure() const { return !own_.public_key.empty(); }
  ZapHandler& zap() { return zap_; }
  // Of the connections that have brought no message of a rank.
  ConnectionLimiter& limiter() { return *limiter_; }
  // Readable when there may be a message to receive or room to send. Like ZMQ_FD, wait for it only after everything was
  // received.
  std::vector<int> descriptors();

  // `credential`: the public key of the rank if secure, else the token that it expects. Throws ::zmq::error_t if the
  // endpoint or the credential is malformed.
  void dial(int32_t rank, const std::string& endpoint, const std::string& credential);
  // Closes the connection and discards its queued messages.
  void disconnect(int32_t rank);

  // Begins a message to a rank. After kYes, send its frames by send_part(), which cannot fail.
  Sent begin(int32_t rank);
  void send_part(::zmq::message_t& frame, bool more);
  // Sends on a connection that the peer has dialled. Best effort.
  void reply(const std::string& route, ::zmq::message_t frame);

  // The next message from the ranks that dialled this one; false if there is none.
  bool receive(Inbound& message) { return receive_from(listening_, message); }
  // The same for messages of any number of frames.
  bool receive(::zmq::message_t& route, std::vector<::zmq::message_t>& frames);
  // The next reply from a rank that this one dialled.
  bool receive_reply(Inbound& message) { return receive_from(dialling_, message); }
  // The next rank whose connection has broken or could not be established. For lack of a descriptor it is tried again
  // for some seconds.
  std::optional<int32_t> broken();

  // Closes the sockets. libzmq sends queued messages in the background for at most these times.
  void close(std::chrono::milliseconds linger_dialled, std::chrono::milliseconds linger_listening);
  // Blocks until libzmq has finished; it then holds no buffer, descriptor or thread.
  void shut_down();

  // The rank of a route of receive_reply().
  static int32_t rank_of(const ::zmq::message_t& route);

 private:
  static bool receive_from(::zmq::socket_t& socket, Inbound& message);
  void listen();

  const Settings settings_;
  KeyPair own_;
  ::zmq::context_t context_;
  ZapHandler zap_;
  ::zmq::socket_t listening_;
  std::optional<ConnectionLimiter> limiter_;
  ::zmq::socket_t dialling_;
  ::zmq::socket_t events_;  // monitor of the dialled connections
  std::string endpoint_;
  std::string local_endpoint_;
  std::unordered_map<std::string, int32_t> ranks_;  // by endpoint
  struct Dialled {
    std::string endpoint;
    std::string route;  // a new one for each dial: libzmq may still hold the previous one
    int retries = 0;    // of its connection
  };
  std::unordered_map<int32_t, Dialled> dialled_;
  uint32_t dials_ = 0;
};

}  // namespace backplane::zmq
