// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "async_support.hpp"

namespace backplane::conformance {

// A provoked failure and its expected status.
struct Failed {
  std::string what;
  int32_t status;
  Outcome outcome;
};

// Makes a group and provokes the failures that every backend with send and recv has: a message that is too long, a
// timeout (if the backend keeps deadlines), a cancel (if supported), an abort, a submit after the abort. Call on all
// ranks.
std::vector<Failed> provoke(Rank& rank, const std::string& space);

}  // namespace backplane::conformance
