// SPDX-License-Identifier: Apache-2.0
#include "limiter.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "support/eventually.hpp"

namespace backplane::tensorpipe {
namespace {

using base::Descriptor;
using std::chrono::milliseconds;

class LimiterTest : public testing::Test {
 protected:
  void SetUp() override {
    addr_.sin_family = AF_INET;
    addr_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof addr_;
    ASSERT_EQ(::bind(listener_.get(), name(), size), 0);
    ASSERT_EQ(::listen(listener_.get(), 16), 0);
    ASSERT_EQ(::getsockname(listener_.get(), name(), &size), 0);
    url_ = "uv://127.0.0.1:" + std::to_string(ntohs(addr_.sin_port));
  }
  sockaddr* name() { return reinterpret_cast<sockaddr*>(&addr_); }
  // A new connection; returns the client's end.
  int connect() {
    clients_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(clients_.back().get(), name(), sizeof addr_), 0);
    accepted_.emplace_back(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(accepted_.back());
    return clients_.back().get();
  }

  const Descriptor listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in addr_ = {};
  std::string url_;
  std::vector<Descriptor> clients_;
  std::vector<Descriptor> accepted_;
};

TEST_F(LimiterTest, CountsConnectionsThatHaveBroughtNothing) {
  const ConnectionLimiter limiter({2, milliseconds(0), std::chrono::hours(1)});
  EXPECT_FALSE(limiter.is_exceeded(url_));
  connect();
  connect();
  EXPECT_FALSE(limiter.is_exceeded(url_));
  const int third = connect();
  EXPECT_TRUE(limiter.is_exceeded(url_));
  EXPECT_FALSE(limiter.is_exceeded("uv://127.0.0.2" + url_.substr(url_.rfind(':'))));
  EXPECT_FALSE(limiter.is_exceeded("shm://name"));
  ASSERT_EQ(::send(third, "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(test::eventually([&] { return !limiter.is_exceeded(url_); }));  // not read by anyone
}

TEST_F(LimiterTest, NoticesAnOldConnection) {
  const ConnectionLimiter old({100, milliseconds(0), milliseconds(50)});
  const ConnectionLimiter young({0, std::chrono::hours(1), std::chrono::hours(2)});
  const int client = connect();
  EXPECT_TRUE(test::eventually([&] { return old.is_exceeded(url_); }));
  EXPECT_FALSE(young.is_exceeded(url_));
  ASSERT_EQ(::send(client, "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(test::eventually([&] { return !old.is_exceeded(url_); }));
}

}  // namespace
}  // namespace backplane::tensorpipe
