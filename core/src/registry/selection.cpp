// SPDX-License-Identifier: Apache-2.0
#include "registry/selection.hpp"

#include <algorithm>
#include <charconv>

#include "environment.hpp"
#include "error.hpp"
#include "options/names.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

// `where` begins each message: "backend 'gloo?a=1'".
std::string decode(std::string_view text, const std::string& where) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result.push_back(text[i]);
      continue;
    }
    if (i + 1 < text.size() && (text[i + 1] == 'r' || text[i + 1] == 'g')) {  // the plugin replaces it
      result.push_back('%');
      continue;
    }
    unsigned value = 0;
    const char* begin = text.data() + i + 1;
    const char* end = begin + 2;
    if (i + 2 >= text.size() || std::from_chars(begin, end, value, 16).ptr != end) {
      fail(BP_INVALID, "{}: % is not followed by two hexadecimal digits; write %25 for a % sign", where);
    }
    result.push_back(static_cast<char>(value));
    i += 2;
  }
  return result;
}

KeyValues parse_options(std::string_view text, const std::string& where) {
  KeyValues options;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('&', begin), text.size());
    const std::string_view pair = text.substr(begin, end - begin);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      fail(BP_INVALID, "{}: expected key=value after '?' or '&', found '{}'", where, escaped(pair));
    }
    options.emplace_back(std::string(pair.substr(0, equals)), decode(pair.substr(equals + 1), where));
    begin = end + 1;
  }
  return options;
}

// Calls take(part) for each part of a list.
template <typename Take>
void split_parts(std::string_view text, char separator, Take take) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    take(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

[[noreturn]] void fail_device(std::string_view device, std::string_view rest, const std::string& where) {
  if (rest.find('=') == std::string_view::npos) {
    fail(BP_INVALID, "{}: unknown device '{}'; use cpu or cuda", where, escaped(device));
  }
  fail(BP_INVALID, "{}: unknown device '{}'; options follow a '?': write '{}?{}'", where, escaped(device),
       escaped(device), escaped(rest));
}

SelectionPart parse_part(std::string_view text, const std::string& where) {
  SelectionPart part;
  const size_t question = text.find('?');
  std::string_view head = text.substr(0, question);
  const size_t colon = head.find(':');
  if (colon != std::string_view::npos) {
    const std::string device = lower(head.substr(0, colon));
    if (device != "cpu" && device != "cuda") fail_device(device, text.substr(colon + 1), where);
    part.memory = device == "cpu" ? BP_HOST : BP_CUDA;
    head.remove_prefix(colon + 1);
  }
  part.name = lower(head);
  if (!valid_id(part.name)) {
    fail(BP_INVALID, "{}: '{}' is not a valid name; use 1 to 32 letters, digits, _ and -", where, escaped(head));
  }
  if (question != std::string_view::npos) part.options = parse_options(text.substr(question + 1), where);
  return part;
}

// A part with one backend or two.
SelectionPart parse_composite(std::string_view text, const std::string& where) {
  std::vector<SelectionPart> backends;
  split_parts(text, '+', [&](std::string_view one) { backends.push_back(parse_part(one, where)); });
  SelectionPart part = std::move(backends.front());
  if (backends.size() == 1) return part;
  SelectionPart between = std::move(backends[1]);
  if (backends.size() > 2) {
    fail(BP_INVALID, "{}: {} backends are joined by '+'; name one for the ranks of a host and one between hosts", where,
         backends.size());
  }
  if (between.memory) {
    fail(BP_INVALID, "{}: the device of a part stands before its first backend; write '{}+{}'", where, part.name,
         between.name);
  }
  if (part.memory == BP_CUDA) {
    fail(BP_INVALID, "{}: {}+{} serves the memory of the processor alone; write cpu:{}+{}", where, part.name,
         between.name, part.name, between.name);
  }
  if (part.name == "auto" || between.name == "auto") {
    fail(BP_INVALID, "{}: auto is not part of a composite; write auto, or name both backends", where);
  }
  part.between.push_back(std::move(between));
  return part;
}

}  // namespace

std::vector<SelectionPart> parse_selection(std::string_view text) {
  std::vector<SelectionPart> parts;
  const std::string where = fmt::format("backend '{}'", escaped(text));
  split_parts(text, ',', [&parts, &where](std::string_view one) {
    SelectionPart part = parse_composite(one, where);
    for (const SelectionPart& other : parts) {
      if (other.memory != part.memory) continue;
      fail(BP_INVALID, "{}: {} and {} serve the same device; name one backend, or one for each device: cpu:{},cuda:{}",
           where, other.name, part.name, other.name, part.name);
    }
    parts.push_back(std::move(part));
  });
  return parts;
}

SelectionPart parse_rpc_selection(std::string_view text) {
  if (text.find(',') != std::string_view::npos) fail(BP_INVALID, "'{}' is not one RPC backend", escaped(text));
  SelectionPart part = parse_part(text, fmt::format("RPC backend '{}'", escaped(text)));
  if (part.memory) fail(BP_INVALID, "RPC backend '{}': write it without a device", escaped(text));
  return part;
}

std::vector<SelectionPart> parse_layers(std::string_view text) {
  std::vector<SelectionPart> parts;
  if (text.empty()) return parts;
  const std::string where = fmt::format("BACKPLANE_LAYERS '{}'", escaped(text));
  split_parts(text, ',', [&parts, &where](std::string_view one) {
    parts.push_back(parse_part(one, where));
    if (!parts.back().memory) return;
    fail(BP_INVALID, "{}: a layer wraps the backends of all devices; write '{}' without a device", where,
         parts.back().name);
  });
  return parts;
}

std::string selected_backend(const char* requested) {
  const std::string selected = requested_or(requested, "BACKPLANE_BACKEND");
  return selected.empty() ? "auto" : selected;
}

std::string requested_or(const char* requested, const char* variable, bool secure) {
  if (requested != nullptr && *requested != '\0') return requested;
  std::string selected = core::variable(variable).value_or("");
  if (secure && selected.find('?') != std::string::npos) {
    fail(BP_INVALID,
         "{} has options, which may name files; a program with more rights than its caller (set-uid) takes names of "
         "backends alone from it",
         variable);
  }
  return selected;
}

}  // namespace backplane::core
