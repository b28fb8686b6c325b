// SPDX-License-Identifier: Apache-2.0
//
// A peer of the plugin gloo that sends what a test wants.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "backplane/base/descriptor.hpp"
#include "gloo_test.hpp"
#include "support/eventually.hpp"

namespace backplane::test {

// What a rank publishes.
struct PublishedEndpoint {
  std::array<char, 16> token = {};
  std::array<char, 16> answer = {};
  int32_t world_size = 0;
  std::array<char, sizeof(sockaddr_in6)> address = {};

  sockaddr_in socket_address() const {
    sockaddr_in result = {};
    std::memcpy(&result, address.data(), sizeof(result));
    return result;
  }
  void set_address(const sockaddr_in& to) { std::memcpy(address.data(), &to, sizeof(to)); }
};

inline PublishedEndpoint endpoint_of(MemoryHost& host, int32_t rank) {
  PublishedEndpoint endpoint;
  uint64_t size = 0;
  const std::string key = "gloo/" + std::to_string(rank);
  EXPECT_EQ(host.table()->store_get(host.table()->ctx, key.c_str(), &endpoint, sizeof(endpoint), &size,
                                    INT64_C(20'000'000'000), nullptr),
            BP_OK);
  EXPECT_EQ(size, sizeof(endpoint));
  return endpoint;
}

inline void publish(MemoryHost& host, int32_t rank, const PublishedEndpoint& endpoint) {
  const std::string key = "gloo/" + std::to_string(rank);
  host.table()->store_set(host.table()->ctx, key.c_str(), &endpoint, sizeof(endpoint), nullptr);
}

// The host comparison, in place of ranks that have not come.
inline void skip_host_comparison(MemoryHost& host) {
  host.table()->store_set(host.table()->ctx, "gloo/host", "here", 4, nullptr);
  host.table()->store_set(host.table()->ctx, "gloo/one_host", "yes", 3, nullptr);
}

// A socket whose reads end after kWaitLimit.
inline base::Descriptor socket_with_limit() {
  base::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit = {kWaitLimit.count(), 0};
  EXPECT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
  return socket;
}

inline base::Descriptor connected_client(const sockaddr_in& to) {
  base::Descriptor socket = socket_with_limit();
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  return socket;
}

inline constexpr uint64_t kTebibyte = uint64_t{1} << 40;

// gloo's header of a message.
struct Preamble {
  uint64_t nbytes = sizeof(Preamble);
  uint64_t opcode = 0;
  uint64_t slot = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t roffset = 0;
};
inline constexpr uint64_t kRegisteredBuffer = 0;
inline constexpr uint64_t kMessage = 1;
inline constexpr uint64_t kSendReady = 2;

// A rank of a group of 2 with another rank of the plugin.
class FakePeer {
 public:
  // Connects as rank 1, and publishes an endpoint behind that of rank 0, which makes rank 0 wait for it. Calls
  // `before_hello` with the address of rank 0 before it sends its hello.
  explicit FakePeer(MemoryHost& host, const std::function<void(const sockaddr_in&)>& before_hello = {}) {
    PublishedEndpoint other = endpoint_of(host, 0);
    socket_ = connected_client(other.socket_address());
    if (before_hello) before_hello(other.socket_address());
    say_hello(other, 1);
    await_answer(other);
    publish(host, 1, other);  // with the same address, at which it will not be needed
  }
  // Uses a connection.
  explicit FakePeer(base::Descriptor socket) : socket_(std::move(socket)) {}

  void say_hello(const PublishedEndpoint& to, int32_t rank) const {
    std::string hello(to.token.data(), to.token.size());
    send(hello.append(reinterpret_cast<const char*>(&rank), sizeof(rank)));
  }
  void await_answer(const PublishedEndpoint& of) const {
    std::array<char, 16> answer = {};
    EXPECT_EQ(::recv(socket_.get(), answer.data(), answer.size(), MSG_WAITALL), static_cast<ssize_t>(answer.size()))
        << std::strerror(errno);
    EXPECT_EQ(answer, of.answer);
  }
  // Waits for the hello of the other rank, which must have this token and number.
  void await_hello(const std::array<char, 16>& token, int32_t rank) const {
    std::array<char, 20> hello = {};
    EXPECT_EQ(::recv(socket_.get(), hello.data(), hello.size(), MSG_WAITALL), static_cast<ssize_t>(hello.size()))
        << std::strerror(errno);
    EXPECT_EQ(std::memcmp(hello.data(), token.data(), token.size()), 0);
    EXPECT_EQ(std::memcmp(hello.data() + token.size(), &rank, sizeof(rank)), 0);
  }
  void send(const std::string& bytes) const {
    EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void send(const Preamble& preamble) const {
    send(std::string(reinterpret_cast<const char*>(&preamble), sizeof(preamble)));
  }
  // Waits for a message of the other rank, up to kWaitLimit.
  Preamble receive() const {
    Preamble preamble;
    EXPECT_EQ(::recv(socket_.get(), &preamble, sizeof(preamble), MSG_WAITALL), static_cast<ssize_t>(sizeof(preamble)))
        << std::strerror(errno);
    return preamble;
  }
  // Waits until the other rank closes the connection, up to kWaitLimit.
  void await_end() const {
    std::array<char, 256> ignored;
    ssize_t got = 1;
    while (got > 0) got = ::recv(socket_.get(), ignored.data(), ignored.size(), 0);
    EXPECT_FALSE(got < 0 && errno == EAGAIN) << "the connection was not closed in time";
  }

 private:
  base::Descriptor socket_;
};

}  // namespace backplane::test
