// SPDX-License-Identifier: Apache-2.0
//
// Decoding of values from a peer.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backplane/rpc.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

// Decoding it recurses once per level.
struct Tree {
  std::vector<Tree> branches;
  MSGPACK_DEFINE(branches)

  size_t depth() const { return branches.empty() ? 1 : 1 + branches.front().depth(); }
};

Tree read(const std::string& bytes) {
  size_t offset = 0;
  return rpc::detail::unpack<Tree>(bytes.data(), bytes.size(), &offset);
}

TEST(RpcContentTest, LimitsTheDepthOfValues) {
  // 0x91: an array of one element. A tree is an array of its fields, of which the only one is an array of branches.
  EXPECT_EQ(read(std::string(61, '\x91') + '\x90').depth(), 31U);
  std::string text;
  EXPECT_EQ(failure_of([] { read(std::string(65, '\x91') + '\x90'); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("depth"), std::string::npos) << text;
  EXPECT_EQ(failure_of([] { read(std::string(100001, '\x91') + '\x90'); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("depth"), std::string::npos) << text;
}

TEST(RpcContentTest, RejectsTruncatedValues) {
  for (const char* const bytes : {"", "\x91", "\x91\xdd\xff\xff\xff\xff", "\xdd\xff\xff\xff\xff", "\xc1"}) {
    std::string text;
    EXPECT_EQ(failure_of([bytes] { read(bytes); }, &text), Status::kInvalid);
    EXPECT_EQ(text, *bytes == '\0' ? "no value was sent" : "the value that was sent is truncated or malformed");
  }
}

}  // namespace
}  // namespace backplane::test
