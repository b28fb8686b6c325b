// SPDX-License-Identifier: Apache-2.0
#include "utf8.hpp"

#include <algorithm>

namespace backplane::trace {
namespace {

// The length in bytes of the UTF-8 character at the start of `text` (Unicode 15, table 3-7). 0: invalid.
size_t character(std::string_view text) {
  const auto byte = [text](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The range of the second byte excludes overlong forms, surrogates and code points beyond Unicode.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t at = 2; at < length; ++at) {
    if (byte(at) < 0x80 || byte(at) > 0xbf) return 0;
  }
  return length;
}

}  // namespace

std::string valid(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = character(text);
    if (length == 0) {
      result += "\xef\xbf\xbd";
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return result;
}

}  // namespace backplane::trace
