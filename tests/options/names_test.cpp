// SPDX-License-Identifier: Apache-2.0
#include "options/names.hpp"

#include <gtest/gtest.h>

#include <string>

namespace backplane::core {
namespace {

TEST(Names, Ids) {
  for (const char* good : {"tcp", "a", "my-backend_2", "0"}) EXPECT_TRUE(valid_id(good)) << good;
  for (const char* bad : {"", "Tcp", "a b", "../x", "a.b", "\xc3\xa4"}) EXPECT_FALSE(valid_id(bad)) << bad;
  EXPECT_TRUE(valid_id(std::string(32, 'x')));
  EXPECT_FALSE(valid_id(std::string(33, 'x')));
}

TEST(Names, PrintableUtf8) {
  for (const char* good : {"", "1.0", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"})
    EXPECT_TRUE(printable(good)) << good;
  // Control, lone continuation, cut short, overlong, surrogate, C1 control, beyond U+10FFFF.
  for (const char* bad : {"a\nb", "\x7f", "\x80", "\xc3", "\xe2\x82", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                          "\xc2\x85", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_FALSE(printable(bad)) << testing::PrintToString(bad);
  }
}

TEST(Names, LegibleForMessages) {
  EXPECT_EQ(escaped("gloo?a=\xc3\xa4"), "gloo?a=\xc3\xa4");
  EXPECT_EQ(escaped("a\nb\xff\xc3"), "a\\x0ab\\xff\\xc3");
  EXPECT_EQ(escaped("\xe2\x82\xac\xe2\x82"), "\xe2\x82\xac\\xe2\\x82");
  EXPECT_EQ(escaped(""), "");
}

}  // namespace
}  // namespace backplane::core
