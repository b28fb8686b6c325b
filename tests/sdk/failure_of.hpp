// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "backplane/sdk/failure.hpp"

namespace backplane::sdk {

// The Failure that `call` throws. Fails the test if it throws none.
template <typename Call>
Failure failure_of(const Call& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure;
  }
  ADD_FAILURE() << "the call succeeded";
  return Failure(BP_OK, "");
}

}  // namespace backplane::sdk
