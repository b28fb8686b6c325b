// SPDX-License-Identifier: Apache-2.0
//
// Accepts the connections of a TCP store's server.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "backplane/base/log_limit.hpp"
#include "store/tcp_address.hpp"

namespace backplane::core {

class Listener {
 public:
  // Calls `connected` for each connection, on the thread that runs `io`. BP_RESOURCE or BP_INVALID as `listen`.
  Listener(boost::asio::io_context& io, const std::string& host, uint16_t port, const Deadline& resolve_until,
           std::function<void(Tcp::socket)> connected);
  // Frees the port, also if a child made by fork has the socket as well.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  Tcp::endpoint endpoint() const { return endpoint_; }

 private:
  void accept();
  bool accept_some();
  void take(base::Descriptor fd);
  void report(int error);  // of accept

  const std::function<void(Tcp::socket)> connected_;
  Tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_timer_;
  base::LogLimit warnings_{std::chrono::seconds(10)};
  Tcp::endpoint endpoint_;
};

}  // namespace backplane::core
