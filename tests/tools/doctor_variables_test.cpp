// SPDX-License-Identifier: Apache-2.0
//
// The variables that backplane doctor knows are those of share/doc/operations.md.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "doctor/variables.hpp"

namespace backplane::test {
namespace {

// The names in the first column of the table "Environment variables".
std::set<std::string> documented_variables() {
  std::ifstream file(BACKPLANE_TEST_OPERATIONS);
  std::set<std::string> names;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) is_inside = line == "## Environment variables";
    if (!is_inside || !line.starts_with("| `")) continue;
    const std::string column = line.substr(0, line.find(" | ", 2));
    const std::regex name("`(BACKPLANE_[A-Z_]+)`");
    for (std::sregex_iterator at(column.begin(), column.end(), name), end; at != end; ++at) names.insert((*at)[1]);
  }
  return names;
}

TEST(DoctorVariables, AreThoseOfTheDocument) {
  const std::set<std::string> known(tool::kVariables.begin(), tool::kVariables.end());
  EXPECT_EQ(known, documented_variables());
}

}  // namespace
}  // namespace backplane::test
