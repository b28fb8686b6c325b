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

#include "backplane/base/descriptor.hpp"
#include "gloo_test.hpp"
#include "support/eventually.hpp"

namespace backplane::test {

inline constexpr size_t kTokenSize = 16;
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

// Rank 1 of a group of 2, without the plugin.
class FakePeer {
 public:
  // Publishes an address behind that of rank 0, which makes rank 0 wait for the connection, and connects. Calls
  // `before_hello` with the address of rank 0 before it sends its hello.
  explicit FakePeer(MemoryHost& host, const std::function<void(const sockaddr_in&)>& before_hello = {}) {
    std::array<char, 4096> bytes;
    uint64_t size = 0;
    const bp_host& table = *host.table();
    EXPECT_EQ(table.store_get(table.ctx, "gloo/0", bytes.data(), bytes.size(), &size, INT64_C(20'000'000'000), nullptr),
              BP_OK);
    sockaddr_in to = {};
    std::memcpy(&to, bytes.data() + kTokenSize, sizeof(to));
    sockaddr_in own = to;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    std::string published(bytes.data(), size);
    published.replace(kTokenSize, sizeof(own), reinterpret_cast<const char*>(&own), sizeof(own));
    table.store_set(table.ctx, "gloo/1", published.data(), published.size(), nullptr);
    socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit = {kWaitLimit.count(), 0};
    EXPECT_EQ(::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    if (before_hello) before_hello(to);
    const int32_t rank = 1;
    std::string hello(bytes.data(), kTokenSize);
    send(hello.append(reinterpret_cast<const char*>(&rank), sizeof(rank)));
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
