// SPDX-License-Identifier: Apache-2.0
#include "options/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace backplane::core {

bool valid_id(std::string_view id) {
  return !id.empty() && id.size() <= 32 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

bool printable(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x80) {
      if (lead < 0x20 || lead == 0x7F) return false;
      ++at;
      continue;
    }
    // Table 3-7 of the Unicode standard, as a smallest code point per length.
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - at < length) return false;
    uint32_t code = lead & (0x7FU >> length);
    for (size_t i = 1; i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      if ((next & 0xC0U) != 0x80) return false;
      code = (code << 6) | (next & 0x3FU);
    }
    const uint32_t smallest = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0xA0;  // 0x80..0x9F are controls
    if (code < smallest || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    at += length;
  }
  return true;
}

std::string legible(std::string_view text) {
  constexpr size_t kLongestCharacter = 4;
  std::string result;
  for (size_t at = 0; at < text.size();) {
    size_t length = 1;
    while (length <= kLongestCharacter && !printable(text.substr(at, length))) ++length;
    if (length <= kLongestCharacter) {
      result += text.substr(at, length);
      at += length;
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
    }
  }
  return result;
}

}  // namespace backplane::core
