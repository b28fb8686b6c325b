// SPDX-License-Identifier: Apache-2.0
//
// The file of --expect-failures.
#pragma once

#include <map>
#include <string>

#include "backplane/conformance/conformance.hpp"

namespace backplane::tool {

// Reads a file with a line "CASE: REASON" or "CASE (intermittent): REASON" per case. Empty lines, and lines that begin
// with #, are skipped. Throws Failure(kWrongUse) with file and line.
std::map<std::string, conformance::KnownFailure> read_known_failures(const std::string& path);

}  // namespace backplane::tool
