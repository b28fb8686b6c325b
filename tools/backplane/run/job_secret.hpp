// SPDX-License-Identifier: Apache-2.0
//
// The job's secret as the launcher hands it to its ranks and uses it itself: by variables that say where it is, never
// what it is.
#pragma once

#include <optional>
#include <string>

#include "common/process.hpp"

namespace backplane::tool {

// Makes this process's environment, which the ranks get, name the file. It is read, and judged, when the store is made.
void use_secret_file(const std::string& path);

// Draws a secret into sealed memory without a name, and makes the environment name the descriptor, which is
// close-on-exec: only children that are meant to inherit it do.
Descriptor draw_secret();

}  // namespace backplane::tool
