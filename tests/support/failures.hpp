// SPDX-License-Identifier: Apache-2.0
//
// Failures below the C++ API, whose exceptions have a status: core::Error and sdk::Failure.
#pragma once

#include <cstdint>
#include <string>

#include "backplane/abi/status.h"

namespace backplane::test {

// The status of the `Exception` that `call` throws; BP_OK if it throws none. *text gets the sentence.
template <typename Exception, typename Call>
int32_t status_of(const Call& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Exception& e) {
    if (text != nullptr) *text = e.what();
    return e.status();
  }
  return BP_OK;
}

}  // namespace backplane::test
