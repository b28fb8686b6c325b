// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/utf8.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace backplane::base {
namespace {

// Encodes any number by the bit patterns of UTF-8, including invalid code points and overlong forms.
std::string encode(uint32_t code, size_t size) {
  if (size == 1) return std::string(1, static_cast<char>(code));
  std::string bytes(size, '\0');
  for (size_t at = size - 1; at > 0; --at, code >>= 6U) bytes[at] = static_cast<char>(0x80U | (code & 0x3FU));
  bytes[0] = static_cast<char>((0xF00U >> size) | code);
  return bytes;
}

TEST(Utf8Test, TakesTheShortestFormOfEachCharacterAlone) {
  const uint32_t ends[] = {0x80, 0x800, 0x10000, 0x110000, 0x200000};
  for (size_t size = 1; size <= 4; ++size) {
    const uint32_t end = size == 4 ? ends[4] : ends[size - 1];
    for (uint32_t code = 0; code < end; code += code < 0x10000 ? 1 : 255) {
      const bool shortest = size == 1 || code >= ends[size - 2];
      const bool valid = shortest && code < ends[3] && (code < 0xD800 || code > 0xDFFF);
      const std::string bytes = encode(code, size);
      ASSERT_EQ(utf8_character_size(bytes), valid ? size : 0) << std::hex << code << " in " << size << " bytes";
      ASSERT_EQ(utf8_character_size(bytes.substr(0, size - 1)), 0U) << std::hex << code;
    }
  }
  EXPECT_EQ(utf8_character_size(""), 0U);
  EXPECT_EQ(utf8_character_size("\x80"), 0U);
  EXPECT_EQ(utf8_character_size("\xFF"), 0U);
}

TEST(Utf8Test, FindsAndReplacesWhatIsInvalid) {
  EXPECT_EQ(find_invalid_utf8("a\xC3\xA4z"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("a\xC3\xA4\xA4z"), 3U);
  EXPECT_EQ(find_invalid_utf8("a\xC3"), 1U);
  EXPECT_EQ(replace_invalid_utf8("a\xC3\xA4z"), "a\xC3\xA4z");
  EXPECT_EQ(replace_invalid_utf8("\xC3z\xFF"), "\xEF\xBF\xBDz\xEF\xBF\xBD");
}

TEST(Utf8Test, KnowsControls) {
  EXPECT_TRUE(is_control_character("\n"));
  EXPECT_TRUE(is_control_character("\x7F"));
  EXPECT_TRUE(is_control_character("\xC2\x9F"));
  EXPECT_FALSE(is_control_character("\xC2\xA0"));
  EXPECT_FALSE(is_control_character("a"));
}

}  // namespace
}  // namespace backplane::base
