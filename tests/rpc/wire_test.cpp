// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire.hpp"

#include <gtest/gtest.h>

#include "error.hpp"
#include "support/failures.hpp"

namespace backplane::core::rpc {
namespace {

Header full() {
  Header header;
  header.kind = Kind::kRemote;
  header.call = 7;
  header.status = 3;
  header.holder = 2;
  header.function = "f";
  header.value = {1, 8};
  header.fork = {2, 9};
  header.refs = {{0, {1, 2}, {3, 4}}, {1, {5, 6}, {7, 8}}};
  return header;
}

TEST(RpcWireTest, DecodesWhatWasEncoded) {
  const std::string bytes = encode(full(), 3) + "abc";
  std::string_view left = bytes;
  const Header read = decode(&left);
  EXPECT_EQ(left, "abc");
  EXPECT_EQ(read.kind, Kind::kRemote);
  EXPECT_EQ(read.call, 7U);
  EXPECT_EQ(read.function, "f");
  EXPECT_EQ(read.fork, (Id{2, 9}));
  ASSERT_EQ(read.refs.size(), 2U);
  EXPECT_EQ(read.refs[1].value, (Id{5, 6}));
  EXPECT_EQ(encode(read, 0), encode(full(), 0));
}

TEST(RpcWireTest, RejectsTruncatedAndForgedHeaders) {
  const std::string bytes = encode(full(), 0);
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::string_view cut = std::string_view(bytes).substr(0, size);
    EXPECT_EQ(test::status_of<Error>([&cut] { decode(&cut); }), BP_INVALID) << size;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string forged = bytes;
    forged[at] = '\xff';
    std::string_view left = forged;
    const int32_t status = test::status_of<Error>([&left] { decode(&left); });
    constexpr size_t kChecked = 5;  // bytes: magic number and kind
    EXPECT_TRUE(status == BP_INVALID || (status == BP_OK && at >= kChecked)) << at;
  }
}

}  // namespace
}  // namespace backplane::core::rpc
