// SPDX-License-Identifier: Apache-2.0
//
// Finds the program to run.
#pragma once

#include <string>

namespace backplane::tool {

// Searches PATH for a name without a slash, as execvp does. Throws Failure: kNotFound or kNotExecutable.
std::string find_program(const std::string& name);

// The path of a program of Backplane's own that users do not call, which may be missing: bin/backplane,
// libexec/backplane/NAME.
std::string libexec_path(const std::string& name);

// Describes why exec failed for a file that find_program accepted.
std::string exec_failure(const std::string& path, int number);

}  // namespace backplane::tool
