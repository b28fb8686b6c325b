// SPDX-License-Identifier: Apache-2.0
//
// Where a program is, looked up before anything is started.
#pragma once

#include <string>

namespace backplane::tool {

// A name without a slash is searched in PATH, as execvp does. Fails with kNotFound or kNotExecutable and a sentence.
std::string find_program(const std::string& name);

// Why exec of a file that find_program accepted failed, as a sentence.
std::string exec_failure(const std::string& path, int number);

}  // namespace backplane::tool
