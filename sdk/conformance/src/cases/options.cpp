// SPDX-License-Identifier: Apache-2.0
//
// Group `options`. The core reads what users write, by the backend's schema; so the schema has to be such that it can,
// and the backend has to bear every value that the schema lets through.
#include "options_groups.hpp"

namespace backplane::conformance {

std::vector<Case> options_cases() {
  std::vector<Case> all = options::schema_cases();
  const std::vector<Case> values = options::values_cases();
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

}  // namespace backplane::conformance
