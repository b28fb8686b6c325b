// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace backplane::core {

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 100;
  std::string result = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", byte);
    }
  }
  return result + (text.size() > kShown ? "...'" : "'");
}

std::string listed(const std::vector<std::string>& texts) {
  constexpr size_t kShown = 4;
  std::string result;
  const size_t shown = texts.size() <= kShown + 1 ? texts.size() : kShown;  // "and 1 more" is no shorter than the text
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) result += i + 1 == texts.size() ? " and " : ", ";
    result += quoted(texts[i]);
  }
  if (shown < texts.size()) result += fmt::format(" and {} more", texts.size() - shown);
  return result;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return result;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string duration_text(int64_t ns) {
  const double value = seconds(ns);
  // Rounded: 4.99999 s remain of "5 s" when a call starts.
  if (value >= 0.995) return fmt::format("{:g} s", std::round(value * 100) / 100);
  return fmt::format("{:g} ms", std::round(value * 1000));
}

}  // namespace backplane::core
