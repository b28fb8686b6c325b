// SPDX-License-Identifier: Apache-2.0
#include "address.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backplane/sdk/failure.hpp"

namespace backplane::tensorpipe {
namespace {

template <typename Body>
int32_t status_of(const Body& body, std::string* text) {
  try {
    body();
  } catch (const sdk::Failure& failure) {
    *text = failure.what();
    return failure.status();
  }
  return BP_OK;
}

TEST(TensorPipeAddressTest, MustBelongToThisHost) {
  EXPECT_EQ(checked_address("127.0.0.1"), "127.0.0.1");
  const auto refusal = [](const std::string& address) {
    std::string text;
    EXPECT_EQ(status_of([&address] { checked_address(address); }, &text), BP_INVALID) << address;
    return text;
  };
  EXPECT_NE(refusal("example.invalid").find("is not an IPv4 or IPv6 address"), std::string::npos);
  EXPECT_NE(refusal("0.0.0.0").find("every interface"), std::string::npos);
  EXPECT_NE(refusal("::").find("every interface"), std::string::npos);
  EXPECT_NE(refusal("192.0.2.1").find("the address 192.0.2.1: cannot listen there"), std::string::npos);
}

TEST(TensorPipeAddressTest, DetectsUnreachableAddresses) {
  std::string text;
  EXPECT_EQ(status_of([] { require_reachable("uv://127.0.0.1:1", 3); }, &text), BP_OK);
  EXPECT_EQ(status_of([] { require_reachable("uv://255.255.255.255:1", 3); }, &text), BP_PEER_LOST);
  EXPECT_NE(text.find("no route to rank 3 at uv://255.255.255.255:1"), std::string::npos) << text;
  EXPECT_EQ(status_of([] { require_reachable("uv://nowhere:1", 3); }, &text), BP_INVALID);
  EXPECT_EQ(text, "rank 3 has an invalid address: uv://nowhere:1");
}

TEST(TensorPipeAddressTest, DetectsMissingDescriptors) {
  rlimit express_position = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &express_position), 0);
  const int next = fcntl(0, F_DUPFD, 3);
  close(next);
  const rlimit little = {static_cast<rlim_t>(next) + 10, express_position.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &little), 0);
  std::string text;
  EXPECT_EQ(status_of([] { require_reachable("uv://127.0.0.1:1", 3); }, &text), BP_OK);
  EXPECT_EQ(status_of([] { require_reachable("shm://there", 3); }, &text), BP_RESOURCE);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &express_position), 0);
  EXPECT_NE(text.find("ulimit -n"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane::tensorpipe
