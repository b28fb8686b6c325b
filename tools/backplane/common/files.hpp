// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backplane/base/host.hpp"
#include "backplane/base/pipe.hpp"

namespace backplane::tool {

// Both throw Failure(kFailed), which names the file.
void write_file(const std::string& path, const std::string& text);
std::string read_file(const std::string& path);

// Throws Failure(kFailed).
base::Pipe make_pipe();

using base::host_name;

}  // namespace backplane::tool
