// SPDX-License-Identifier: Apache-2.0
//
// The backend that `backplane check --api` hands to the suite. Each of its operations is a call of the C++ API on a
// group over another backend, so that the cases test libbackplane: validation, schedules, isolation, and the
// translation of failures.
#pragma once

#include <map>
#include <string>

#include "backplane/conformance/conformance.hpp"

namespace backplane::tool {

// A plugin table with one backend, named like the one below it, a backend's id or a composite with options. `options`
// are those of the backend below. Call once, before ranks start. The result is static.
const bp_plugin* api_plugin(const std::string& below, const std::map<std::string, std::string>& options);

// The cases that fail over every backend because the API offers less than the plugin ABI, with the reasons.
std::map<std::string, conformance::KnownFailure> api_differences();

// Loads the backend below in this process and copies its abilities to the descriptor. Call first in each rank.
void load_api_backend();

}  // namespace backplane::tool
