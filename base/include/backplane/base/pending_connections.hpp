// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

namespace backplane::base {

// How many connections that have proven nothing a server in this process may hold: a quarter of its descriptors, at
// least 16, at most 1024.
inline size_t max_pending_connections() {
  constexpr size_t kMaxLimit = 1024;
  constexpr size_t kMinLimit = 16;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMaxLimit;
  return std::clamp<size_t>(static_cast<size_t>(limit.rlim_cur) / 4, kMinLimit, kMaxLimit);
}

}  // namespace backplane::base
