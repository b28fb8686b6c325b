// SPDX-License-Identifier: Apache-2.0
#include "check/filters.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <numeric>

#include "common/failure.hpp"
#include "common/table.hpp"

namespace backplane::tool {
namespace {

using conformance::Level;
using conformance::Result;

std::string name_of(const Result& which) { return which.group + "." + which.name; }

// Levenshtein distance.
size_t distance(const std::string& from, const std::string& to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string nearest(const std::string& filter, const std::vector<Result>& cases) {
  std::string best;
  for (const Result& which : cases) {
    for (const std::string& candidate : {which.group, name_of(which)}) {
      if (best.empty() || distance(filter, candidate) < distance(filter, best)) best = candidate;
    }
  }
  return best;
}

}  // namespace

std::vector<std::string> chosen_cases(const std::vector<std::string>& filters, Level level) {
  const std::vector<Result> cases = conformance::cases();
  std::vector<bool> chosen(cases.size(), false);
  const auto at_level = [level](const Result& which) { return which.level <= level; };
  if (filters.empty()) std::transform(cases.begin(), cases.end(), chosen.begin(), at_level);
  for (const std::string& filter : filters) {
    bool known = false;
    bool any = false;
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string name = name_of(cases[i]);
      if (filter != cases[i].group && ::fnmatch(filter.c_str(), name.c_str(), 0) != 0) continue;
      known = true;
      if (filter != name && !at_level(cases[i])) continue;
      any = chosen[i] = true;
    }
    if (!known) {
      throw Failure(kWrongUse,
                    fmt::format("--filter {}: no such case; did you mean {}? ('backplane check --list' shows all)",
                                printable(filter), nearest(filter, cases)));
    }
    if (!any) {
      throw Failure(kWrongUse,
                    fmt::format("--filter {}: all matching cases belong to a higher level; add --level thorough",
                                printable(filter)));
    }
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (chosen[i]) names.push_back(name_of(cases[i]));
  }
  return names;
}

std::string nearest_case(const std::string& name) {
  const std::vector<Result> cases = conformance::cases();
  const auto by_distance = [&name](const Result& left, const Result& right) {
    return distance(name, name_of(left)) < distance(name, name_of(right));
  };
  return name_of(*std::min_element(cases.begin(), cases.end(), by_distance));
}

const char* level_word(Level level) {
  return level == Level::kMust ? "must" : (level == Level::kFull ? "full" : "thorough");
}

Level level_of(const std::string& word) {
  return word == "must" ? Level::kMust : (word == "full" ? Level::kFull : Level::kThorough);
}

std::string case_table() {
  Table table({"CASE", "LEVEL", "RULE"});
  for (const Result& which : conformance::cases()) {
    table.add({name_of(which), level_word(which.level), which.about});
  }
  return table.text();
}

}  // namespace backplane::tool
