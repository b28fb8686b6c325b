// SPDX-License-Identifier: Apache-2.0
//
// The job's secret. The launcher passes its location to the ranks by environment variables, never its value.
#pragma once

#include <optional>
#include <string>

#include "backplane/base/descriptor.hpp"

namespace backplane::tool {

// Sets BACKPLANE_SECRET_FILE for this process and the ranks. The file is read and checked when the store is created.
void use_secret_file(const std::string& path);

// Creates a random secret in a sealed memory file and sets BACKPLANE_SECRET_FD. The descriptor is close-on-exec, so
// only children that are given it inherit it.
base::Descriptor create_secret();

}  // namespace backplane::tool
