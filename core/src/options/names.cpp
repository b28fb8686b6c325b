// SPDX-License-Identifier: Apache-2.0
#include "options/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "backplane/base/utf8.hpp"

namespace backplane::core {

bool valid_id(std::string_view id) {
  return !id.empty() && id.size() <= 32 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

bool printable(std::string_view text) {
  while (!text.empty()) {
    const size_t size = base::utf8_character_size(text);
    if (size == 0 || base::is_control_character(text.substr(0, size))) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t size = base::utf8_character_size(text);
    const std::string_view character = text.substr(0, std::max<size_t>(size, 1));
    if (size > 0 && !base::is_control_character(character)) {
      result += character;
    } else {
      for (const char byte : character) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    text.remove_prefix(character.size());
  }
  return result;
}

}  // namespace backplane::core
