// SPDX-License-Identifier: Apache-2.0
//
// Sockets without the store's protocol, on both ends: the test chooses the bytes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "store/wire.hpp"
#include "store_fixture.hpp"

namespace backplane::core {

// Connects. Receives wait at most a minute.
inline int dial_loopback(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const timeval limit = {60, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

// Listens on a free port, which it stores in `port`.
inline int listen_loopback(uint16_t& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(fd, 16), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  port = ntohs(address.sin_port);
  return fd;
}

class RawClient {
 public:
  explicit RawClient(uint16_t port, const std::string& bytes = "") : fd_(dial_loopback(port)) { send(bytes); }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(const std::string& bytes) const { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Sends the bytes again and again, until the server takes none for a second or so many are sent. Returns how many.
  size_t send_until_blocked(const std::string& bytes, size_t most) {
    const timeval limit = {1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    size_t sent = 0;
    while (sent < most) {
      const ssize_t size = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      EXPECT_TRUE(size >= 0 || errno == EAGAIN) << "the server closed the connection";
      if (size < static_cast<ssize_t>(bytes.size())) break;  // a later one could not begin in the middle of a frame
      sent += static_cast<size_t>(size);
    }
    return sent;
  }

  // Returns the bytes that arrive, until there are `most` or the connection ends.
  std::string receive(size_t most) const {
    std::string all;
    std::string part(std::min(most, size_t{1} << 20), '\0');
    while (all.size() < most) {
      const ssize_t got = ::recv(fd_, part.data(), std::min(part.size(), most - all.size()), 0);
      if (got < 0 && errno == EAGAIN) ADD_FAILURE() << "the server keeps the connection";
      if (got <= 0) break;
      all.append(part.data(), static_cast<size_t>(got));
    }
    return all;
  }
  // Receives a frame of less than 64 KiB.
  void skip_frame() const {
    const std::string size = receive(kSizeBytes);
    ASSERT_EQ(size.size(), kSizeBytes) << "the connection ended";
    receive(static_cast<unsigned char>(size[0]) + 256U * static_cast<unsigned char>(size[1]));
  }
  // Until the server closes the connection.
  std::string drain() { return receive(SIZE_MAX); }
  // Makes the destructor reset the connection.
  void reset_on_close() const {
    const linger now = {1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  // Ends once the server has read all bytes. To close with unread replies would be a reset, which may overtake them.
  void finish() {
    ::shutdown(fd_, SHUT_WR);
    drain();
  }

 private:
  const int fd_;
};

}  // namespace backplane::core
