// SPDX-License-Identifier: Apache-2.0
//
// A man in the middle between a client and a store: records and changes bytes, and closes the connection.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "store/raw_socket.hpp"
#include "store/store_fixture.hpp"

namespace backplane::core {

// Serves one connection.
class Relay {
 public:
  enum class Way { kToServer, kToClient };
  // May change the bytes. `offset`: position of the first one in its direction. False: closes the connection after
  // them.
  using Change = std::function<bool(Way way, size_t offset, std::string& bytes)>;

  explicit Relay(
      uint16_t server, Change change = [](Way, size_t, std::string&) { return true; })
      : server_(server), change_(std::move(change)), listener_(listen_loopback(port_)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() { stop(); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  uint16_t port() const { return port_; }
  // Afterwards the recordings are complete.
  void stop() {
    if (!thread_.joinable()) return;
    ::eventfd_write(stop_, 1);
    thread_.join();
    ::close(listener_);
    ::close(stop_);
  }
  // The bytes as they were sent.
  const std::string& to_server() const { return sent_[0]; }
  const std::string& to_client() const { return sent_[1]; }

 private:
  void run() {
    pollfd waiting[2] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    ::poll(waiting, 2, -1);
    if (waiting[1].revents != 0) return;
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int server = dial_loopback(server_);
    pollfd ends[3] = {{client, POLLIN, 0}, {server, POLLIN, 0}, {stop_, POLLIN, 0}};
    for (;;) {
      ::poll(ends, 3, -1);
      if (ends[2].revents != 0) break;
      if (ends[0].revents != 0 && !pass(client, server, Way::kToServer)) break;
      if (ends[1].revents != 0 && !pass(server, client, Way::kToClient)) break;
    }
    ::close(client);
    ::close(server);
  }

  bool pass(int from, int to, Way way) {
    char buffer[65536];
    const ssize_t got = ::recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got <= 0) return got < 0 && errno == EAGAIN;
    std::string bytes(buffer, static_cast<size_t>(got));
    std::string& sent = sent_[way == Way::kToServer ? 0 : 1];
    const size_t offset = sent.size();
    sent += bytes;
    const bool keep = change_(way, offset, bytes);
    return ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()) && keep;
  }

  const uint16_t server_;
  const Change change_;
  const int stop_ = ::eventfd(0, EFD_CLOEXEC);
  uint16_t port_ = 0;
  const int listener_;
  std::string sent_[2];
  std::thread thread_;
};

}  // namespace backplane::core
