// SPDX-License-Identifier: Apache-2.0
//
// Backend selections and option values: any text is parsed or rejected with BP_INVALID. A result that is formatted and
// parsed again is equal.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "backplane/abi/abi.h"
#include "coverage.hpp"
#include "error.hpp"
#include "options/names.hpp"
#include "registry/selection.hpp"

namespace {

using namespace backplane::core;

Coverage read_selection("a selection was read");
Coverage rejected_selection("a selection was rejected");
Coverage read_options("options were read");
Coverage rejected_options("options were rejected");

void require(bool truth) {
  if (!truth) std::abort();
}

constexpr bp_option make(uint32_t type, const char* key, const char* choices, double min, double max) {
  return {sizeof(bp_option), type, 0, 0, key, nullptr, "an option", choices, min, max};
}
constexpr std::array kOptions = {
    make(BP_OPTION_STRING, "s", nullptr, 0, 0),        make(BP_OPTION_INT, "i", nullptr, -5, 1e6),
    make(BP_OPTION_FLOAT, "f", nullptr, -1, 1),        make(BP_OPTION_BOOL, "b", nullptr, 0, 0),
    make(BP_OPTION_ENUM, "e", "ring|tree||a b", 0, 0), make(BP_OPTION_DURATION, "d", nullptr, 0, 0),
    make(BP_OPTION_BYTES, "n", nullptr, 0, 1e15)};

std::string encoded(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    result += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return result;
}

std::string written(const std::vector<SelectionPart>& parts) {
  std::string text;
  for (const SelectionPart& part : parts) {
    if (!text.empty()) text += ',';
    if (part.memory) text += *part.memory == BP_HOST ? "cpu:" : "cuda:";
    text += part.name;
    for (size_t i = 0; i < part.options.size(); ++i) {
      text += (i == 0 ? '?' : '&') + part.options[i].first + '=' + encoded(part.options[i].second);
    }
    if (!part.between.empty()) text += '+' + written(part.between);
  }
  return text;
}

bool same(const std::vector<SelectionPart>& a, const std::vector<SelectionPart>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].memory != b[i].memory || a[i].name != b[i].name || a[i].options != b[i].options) return false;
    if (!same(a[i].between, b[i].between)) return false;
  }
  return true;
}

void complete(const SelectionPart& part) {
  std::array<const bp_option*, kOptions.size()> options{};
  for (size_t i = 0; i < kOptions.size(); ++i) options[i] = &kOptions[i];
  bp_backend backend{};
  backend.struct_size = sizeof backend;
  backend.id = "fuzzed";
  backend.options = options.data();
  backend.option_count = options.size();
  try {
    const KeyValues values = complete_options(backend, part.options);
    require(values.size() == kOptions.size());
    for (size_t i = 0; i < values.size(); ++i) require(values[i].first == kOptions[i].key);
    for (const auto& [key, value] : values) require(printable(value));
    if (!part.options.empty()) read_options.mark();
  } catch (const Error& e) {
    require(e.status() == BP_INVALID);
    rejected_options.mark();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<SelectionPart> parts = parse_selection(text);
    require(!parts.empty() && same(parts, parse_selection(written(parts))));
    read_selection.mark();
    for (const SelectionPart& part : parts) {
      require(valid_id(part.name));
      complete(part);
      for (const SelectionPart& between : part.between) {
        require(valid_id(between.name));
        complete(between);
      }
    }
  } catch (const Error& e) {
    require(e.status() == BP_INVALID && *e.what() != '\0');
    rejected_selection.mark();
  }
  return 0;
}
