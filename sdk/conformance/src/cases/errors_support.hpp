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

// Makes a group in which everything fails that every backend with send and recv can be made to fail at: a message that
// is too long, a timeout (if the backend keeps deadlines), a cancel (if it can), an abort, a submit after that. All
// ranks have to call it.
std::vector<Failed> provoke(Rank& rank, const std::string& space);

}  // namespace backplane::conformance
