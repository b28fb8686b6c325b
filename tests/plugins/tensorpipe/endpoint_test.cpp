// SPDX-License-Identifier: Apache-2.0
#include "endpoint.hpp"

#include <gtest/gtest.h>

#include "backplane/sdk/failure.hpp"
#include "support/failures.hpp"

namespace backplane::tensorpipe {
namespace {

Endpoint endpoint(const std::string& name, const std::string& host, const std::string& uv, const std::string& shm) {
  return {{'!', '\n', '\0', 'x'}, host, uv, shm, {name, 2, {{"b", {{0, 1}}}}}};
}

std::string refusal(const Endpoint& mine, const Endpoint& other) {
  try {
    select_url(mine, other, 1);
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), BP_INVALID);
    EXPECT_EQ(failure.peer_rank(), 1);
    return failure.what();
  }
  return "";
}

TEST(TensorPipeEndpointTest, RoundTrips) {
  Endpoint written = endpoint("a", "h", "uv://127.0.0.1:1", "");
  written.express = "name";
  const Endpoint read = parse_endpoint(format_endpoint(written), 0);
  EXPECT_EQ(read.token, written.token);
  EXPECT_EQ(read.host, "h");
  EXPECT_EQ(read.uv, written.uv);
  EXPECT_EQ(read.shm, "");
  EXPECT_EQ(read.devices.name, "a");
  EXPECT_EQ(read.devices.count, 2);
  EXPECT_EQ(read.devices.maps, written.devices.maps);
  EXPECT_EQ(read.express, "name");
  for (const std::string& broken :
       {std::string("h"), format_endpoint(written).substr(0, format_endpoint(written).size() - 1)}) {
    std::string text;
    EXPECT_EQ(test::status_of<sdk::Failure>([&broken] { parse_endpoint(broken, 0); }, &text), BP_INVALID) << broken;
    EXPECT_EQ(text, "malformed endpoint of a worker in the store");
  }
}

// Older workers ignore the lines of later versions.
TEST(TensorPipeEndpointTest, NamesWorkersOfOtherVersions) {
  const Endpoint mine = endpoint("a", "h", "", "shm://a");
  Endpoint other = endpoint("b", "h", "", "shm://b");
  EXPECT_EQ(parse_endpoint(format_endpoint(other), 1).version, kProtocolVersion);
  EXPECT_NO_THROW(require_same_version(mine, parse_endpoint(format_endpoint(other), 1), 1));
  other.version = 2;
  EXPECT_EQ(parse_endpoint(format_endpoint(other), 1).version, 2);
  other.version = 1;
  const Endpoint old = parse_endpoint(format_endpoint(other), 1);
  EXPECT_EQ(old.version, 1);
  EXPECT_EQ(old.token, other.token);
  EXPECT_TRUE(format_endpoint(endpoint("b", "h", "", "shm://b")).starts_with(format_endpoint(other)));
  try {
    require_same_version(mine, old, 1);
    ADD_FAILURE() << "different versions are accepted";
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), BP_UNSUPPORTED);
    EXPECT_EQ(failure.peer_rank(), 1);
    EXPECT_STREQ(failure.what(),
                 "worker b uses version 1 of the tensorpipe protocol, worker a version 3; run the "
                 "same version of Backplane on all workers");
  }
}

TEST(TensorPipeEndpointTest, SelectsSharedMemoryOnOneHost) {
  const Endpoint a = endpoint("a", "h", "uv://127.0.0.1:1", "shm://a");
  EXPECT_EQ(select_url(a, endpoint("b", "h", "uv://127.0.0.1:2", "shm://b"), 1), "shm://b");
  EXPECT_EQ(select_url(a, endpoint("b", "h", "uv://127.0.0.1:2", ""), 1), "uv://127.0.0.1:2");
  EXPECT_EQ(
      select_url(endpoint("a", "h", "uv://10.0.0.1:1", "shm://a"), endpoint("b", "i", "uv://10.0.0.2:2", "shm://b"), 1),
      "uv://10.0.0.2:2");
}

TEST(TensorPipeEndpointTest, ExplainsUnreachableWorkers) {
  const Endpoint a = endpoint("a", "h", "uv://127.0.0.1:1", "shm://a");
  EXPECT_NE(refusal(a, endpoint("b", "i", "uv://10.0.0.2:2", ""))
                .find("worker b listens on 10.0.0.2 and worker a on 127.0.0.1, but they are on different hosts"),
            std::string::npos);
  EXPECT_NE(refusal(endpoint("a", "h", "uv://[fd77::1]:1", ""), endpoint("b", "i", "uv://[::1]:2", ""))
                .find("worker b listens on ::1 and worker a on fd77::1, but they are on different hosts"),
            std::string::npos);
  EXPECT_NE(refusal(endpoint("a", "h", "uv://127.0.0.1:1", ""), endpoint("b", "h", "", "shm://b"))
                .find("no transport in common: uv here, shm there"),
            std::string::npos);
  EXPECT_NE(refusal(endpoint("a", "h", "", "shm://a"), endpoint("b", "i", "", "shm://b")).find("on different hosts"),
            std::string::npos);
}

}  // namespace
}  // namespace backplane::tensorpipe
