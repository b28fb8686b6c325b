// SPDX-License-Identifier: Apache-2.0
#include "check/known_failures.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <string_view>

#include "check/filters.hpp"
#include "common/failure.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

constexpr std::string_view kIntermittent = " (intermittent)";

Failure wrong_line(const std::string& path, int number, const std::string& what) {
  return {kWrongUse, fmt::format("--expect-failures {}: line {}: {}", printable(path), number, what)};
}

std::string trimmed(const std::string& text) {
  constexpr const char* kBlanks = " \t\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

}  // namespace

std::map<std::string, conformance::KnownFailure> read_known_failures(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw Failure(kWrongUse, fmt::format("--expect-failures: cannot read {}: {}", printable(path), errno_text(errno)));
  }
  std::map<std::string, conformance::KnownFailure> known;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = trimmed(line);
    if (line.empty() || line.front() == '#') continue;
    const size_t colon = line.find(':');
    conformance::KnownFailure failure;
    failure.reason = colon == std::string::npos ? "" : trimmed(line.substr(colon + 1));
    if (failure.reason.empty()) {
      throw wrong_line(path, number, "expected 'CASE: REASON' or 'CASE (intermittent): REASON'");
    }
    std::string name = trimmed(line.substr(0, colon));
    failure.is_intermittent = name.ends_with(kIntermittent);
    if (failure.is_intermittent) name = trimmed(name.substr(0, name.size() - kIntermittent.size()));
    if (const std::string nearest = nearest_case(name); nearest != name) {
      throw wrong_line(path, number, fmt::format("no such case: {}; did you mean {}?", printable(name), nearest));
    }
    if (!known.emplace(name, failure).second) {
      throw wrong_line(path, number, fmt::format("{} is listed twice", printable(name)));
    }
  }
  if (file.bad()) {
    throw Failure(kWrongUse, fmt::format("--expect-failures: cannot read {}: {}", printable(path), errno_text(errno)));
  }
  return known;
}

}  // namespace backplane::tool
