// SPDX-License-Identifier: Apache-2.0
#include "registry/selection.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "error.hpp"
#include "options/names.hpp"

namespace backplane::core {
namespace {

std::string decode(std::string_view text, std::string_view whole) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result.push_back(text[i]);
      continue;
    }
    if (i + 1 < text.size() && (text[i + 1] == 'r' || text[i + 1] == 'g')) {  // of a path: the plugin's affair
      result.push_back('%');
      continue;
    }
    unsigned value = 0;
    const char* begin = text.data() + i + 1;
    const char* end = begin + 2;
    if (i + 2 >= text.size() || std::from_chars(begin, end, value, 16).ptr != end) {
      fail(BP_INVALID, "backend '{}': % is not followed by two hexadecimal digits", legible(whole));
    }
    result.push_back(static_cast<char>(value));
    i += 2;
  }
  return result;
}

KeyValues parse_options(std::string_view text, std::string_view whole) {
  KeyValues options;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('&', begin), text.size());
    const std::string_view pair = text.substr(begin, end - begin);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      fail(BP_INVALID, "backend '{}': expected key=value after '?' or '&', found '{}'", legible(whole), legible(pair));
    }
    options.emplace_back(std::string(pair.substr(0, equals)), decode(pair.substr(equals + 1), whole));
    begin = end + 1;
  }
  return options;
}

// Calls take(part) for each part between commas.
template <typename Take>
void split_parts(std::string_view text, Take take) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    take(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

SelectionPart parse_part(std::string_view text, std::string_view whole) {
  SelectionPart part;
  const size_t question = text.find('?');
  std::string_view head = text.substr(0, question);
  const size_t colon = head.find(':');
  if (colon != std::string_view::npos) {
    const std::string device = lower(head.substr(0, colon));
    if (device != "cpu" && device != "cuda") {
      fail(BP_INVALID, "backend '{}': unknown device '{}'; use cpu or cuda", legible(whole), legible(device));
    }
    part.memory = device == "cpu" ? BP_HOST : BP_CUDA;
    head.remove_prefix(colon + 1);
  }
  part.name = lower(head);
  if (!valid_id(part.name)) {
    fail(BP_INVALID, "backend '{}': '{}' is not a backend's name (letters, digits, _ and -, at most 32)",
         legible(whole), legible(head));
  }
  if (question != std::string_view::npos) part.options = parse_options(text.substr(question + 1), whole);
  return part;
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::vector<SelectionPart> parse_selection(std::string_view text) {
  std::vector<SelectionPart> parts;
  split_parts(text, [&parts, text](std::string_view one) {
    SelectionPart part = parse_part(one, text);
    for (const SelectionPart& other : parts) {
      if (other.memory == part.memory) fail(BP_INVALID, "backend '{}': two parts serve the same device", legible(text));
    }
    parts.push_back(std::move(part));
  });
  return parts;
}

std::vector<SelectionPart> parse_layers(std::string_view text) {
  std::vector<SelectionPart> parts;
  if (text.empty()) return parts;
  split_parts(text, [&parts, text](std::string_view one) {
    parts.push_back(parse_part(one, text));
    if (parts.back().memory)
      fail(BP_INVALID, "BACKPLANE_LAYERS '{}': a layer stands around every device's backend", legible(text));
  });
  return parts;
}

std::string selected_backend(const char* requested) {
  const std::string selected = requested_or(requested, "BACKPLANE_BACKEND");
  return selected.empty() ? "auto" : selected;
}

std::string requested_or(const char* requested, const char* variable) {
  if (requested != nullptr && *requested != '\0') return requested;
  const char* const environment = std::getenv(variable);
  return environment != nullptr ? environment : "";
}

}  // namespace backplane::core
