// SPDX-License-Identifier: Apache-2.0
//
// Somebody with a socket of libzmq's own, with a key or without.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <zmq.hpp>

namespace backplane::test {

struct Keys {
  Keys() { EXPECT_EQ(zmq_curve_keypair(own, secret), 0); }
  char own[41] = {};
  char secret[41] = {};
};

// Dials a rank and says something.
class Stranger {
 public:
  Stranger(const std::string& endpoint, const std::string& server_key, const Keys* keys)
      : socket_(context_, zmq::socket_type::dealer), events_(context_, zmq::socket_type::pair) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::reconnect_ivl, -1);
    if (keys != nullptr) {
      socket_.set(zmq::sockopt::curve_serverkey, server_key);
      socket_.set(zmq::sockopt::curve_publickey, std::string(keys->own));
      socket_.set(zmq::sockopt::curve_secretkey, std::string(keys->secret));
    }
    EXPECT_EQ(zmq_socket_monitor(socket_.handle(), "inproc://events",
                                 ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                     ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                                     ZMQ_EVENT_DISCONNECTED),
              0);
    events_.set(zmq::sockopt::rcvtimeo, 60000);
    events_.set(zmq::sockopt::linger, 0);
    events_.connect("inproc://events");
    socket_.connect(endpoint);
  }
  ~Stranger() { zmq_socket_monitor(socket_.handle(), nullptr, 0); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void say(const std::string& text) { static_cast<void>(socket_.send(zmq::buffer(text), zmq::send_flags::dontwait)); }
  // What became of the handshake.
  bool let_in() {
    zmq::message_t event;
    zmq::message_t address;
    EXPECT_TRUE(events_.recv(event)) << "nothing became of the connection";
    static_cast<void>(events_.recv(address));
    uint16_t number = 0;
    std::memcpy(&number, event.data(), sizeof number);
    return number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  zmq::socket_t events_;
};

}  // namespace backplane::test
