// SPDX-License-Identifier: Apache-2.0
//
// Deadlines and the timeouts of the API.
#pragma once

#include <cstdint>

#include "backplane/base/deadline.hpp"

namespace backplane::core {

using base::Deadline;

// A timeout of the API: the object's own for BP_INHERIT_TIMEOUT, BP_NO_TIMEOUT for any other negative one.
inline int64_t timeout_or(int64_t given_ns, int64_t own_ns) {
  const int64_t timeout_ns = given_ns == BP_INHERIT_TIMEOUT ? own_ns : given_ns;
  return timeout_ns < 0 ? BP_NO_TIMEOUT : timeout_ns;
}

// For messages.
inline double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace backplane::core
