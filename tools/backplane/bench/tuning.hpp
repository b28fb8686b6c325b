// SPDX-License-Identifier: Apache-2.0
//
// The tuning table by which the backend `auto` chooses: medians of backends without options, on this host.
#pragma once

#include <string>

#include "bench/report.hpp"

namespace backplane::tool {

// `chosen` (--tuning-file) if not empty, else BACKPLANE_TUNING_FILE, else the user's file for this host. The core
// searches the same places (core/src/registry/tuning.hpp). Throws Failure(kWrongUse) if there is no HOME to put it in.
std::string tuning_file(const std::string& chosen);

// Replaces the file in one step, so that no rank reads half of it, and makes it readable for every user.
void write_tuning(const std::string& path, const BenchReport& report);

}  // namespace backplane::tool
