// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 as the Unicode standard defines it (table 3-7): shortest forms, no surrogates, nothing beyond U+10FFFF.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace backplane::base {

// The size in bytes of the character at the beginning of `text`; 0 if there is none.
inline size_t utf8_character_size(std::string_view text) {
  const auto byte = [text](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
  if (text.empty()) return 0;
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first < 0xC2 || first > 0xF4 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The range of the second byte excludes overlong forms, surrogates and code points beyond Unicode.
  const unsigned least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t at = 2; at < size; ++at) {
    if (byte(at) < 0x80 || byte(at) > 0xBF) return 0;
  }
  return size;
}

// The index of the first byte that belongs to no character; npos: the text is valid.
inline size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_character_size(text.substr(at));
    if (size == 0) return at;
    at += size;
  }
  return std::string_view::npos;
}

// Whether a character is a control: C0, DEL or C1.
inline bool is_control_character(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return character.size() == 2 && first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

// The text with U+FFFD for each byte that belongs to no character.
inline std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t size = utf8_character_size(text);
    result += size == 0 ? "\xEF\xBF\xBD" : text.substr(0, size);
    text.remove_prefix(std::max<size_t>(1, size));
  }
  return result;
}

}  // namespace backplane::base
