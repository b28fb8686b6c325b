// SPDX-License-Identifier: Apache-2.0
//
// Group `options`. The core parses the user's text by the backend's schema: the schema must be well formed, and the
// backend must accept or refuse by name every value that the schema admits.
#include "options_groups.hpp"

namespace backplane::conformance {

std::vector<Case> options_cases() {
  std::vector<Case> all = options::schema_cases();
  const std::vector<Case> values = options::values_cases();
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

}  // namespace backplane::conformance
