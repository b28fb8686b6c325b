// SPDX-License-Identifier: Apache-2.0
//
// A client that is no rank: a libzmq socket, with a token, with a key, or without either.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>
#include <zmq.hpp>

namespace backplane::test {

struct Keys {
  Keys() { EXPECT_EQ(zmq_curve_keypair(own, secret), 0); }
  char own[41] = {};
  char secret[41] = {};
};

class RawClient {
 public:
  // The destructor blocks until the server has received everything, at most 60 s.
  RawClient(const std::string& endpoint, const std::string& token) : RawClient(endpoint, "", nullptr, 60'000, token) {}
  // `keys` (may be null): connects with CURVE. The destructor does not block.
  RawClient(const std::string& endpoint, const std::string& server_key, const Keys* keys, int linger_ms = 0,
            const std::string& token = "")
      : socket_(context_, zmq::socket_type::dealer), events_(context_, zmq::socket_type::pair) {
    socket_.set(zmq::sockopt::linger, linger_ms);
    socket_.set(zmq::sockopt::reconnect_ivl, -1);
    if (keys != nullptr) {
      socket_.set(zmq::sockopt::curve_serverkey, server_key);
      socket_.set(zmq::sockopt::curve_publickey, std::string(keys->own));
      socket_.set(zmq::sockopt::curve_secretkey, std::string(keys->secret));
    }
    if (!token.empty()) {
      socket_.set(zmq::sockopt::plain_username, std::string("test"));
      socket_.set(zmq::sockopt::plain_password, token);
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
  ~RawClient() { zmq_socket_monitor(socket_.handle(), nullptr, 0); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // Sends a message of these frames.
  void send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      const auto more = i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
      static_cast<void>(socket_.send(zmq::buffer(frames[i]), more | zmq::send_flags::dontwait));
    }
  }
  // Blocks until the handshake has ended. Returns true if the server has accepted it.
  bool is_accepted() {
    zmq::message_t event;
    zmq::message_t address;
    EXPECT_TRUE(events_.recv(event)) << "the handshake has not ended";
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
