// SPDX-License-Identifier: Apache-2.0
//
// Somebody who sits between a client and a store: reads along, changes bytes, cuts the connection.
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

namespace backplane::core {

inline int dial_loopback(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const timeval limit = {60, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

inline void send_all(int fd, const std::string& bytes) {
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// What the other end says until it closes the connection.
inline std::string drain(int fd) {
  std::string all;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EAGAIN) ADD_FAILURE() << "the other end keeps the connection";
    if (got <= 0) return all;
    all.append(buffer, static_cast<size_t>(got));
  }
}

// Serves one connection.
class Relay {
 public:
  enum class Way { kToServer, kToClient };
  // May change the bytes; `offset` of the first one on its way. False cuts the connection after them.
  using Meddle = std::function<bool(Way way, size_t offset, std::string& bytes)>;

  explicit Relay(
      uint16_t server, Meddle meddle = [](Way, size_t, std::string&) { return true; })
      : server_(server), meddle_(std::move(meddle)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 4), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
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
  // What was said, before it was changed.
  const std::string& to_server() const { return said_[0]; }
  const std::string& to_client() const { return said_[1]; }

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
    std::string& said = said_[way == Way::kToServer ? 0 : 1];
    const size_t offset = said.size();
    said += bytes;
    const bool go_on = meddle_(way, offset, bytes);
    return ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()) && go_on;
  }

  const uint16_t server_;
  const Meddle meddle_;
  const int listener_;
  const int stop_ = ::eventfd(0, EFD_CLOEXEC);
  uint16_t port_ = 0;
  std::string said_[2];
  std::thread thread_;
};

}  // namespace backplane::core
