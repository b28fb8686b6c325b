// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace backplane::tool {

// Throw Failure(kFailed) naming the file.
void write_file(const std::string& path, const std::string& text);
std::string read_file(const std::string& path);

// Name of this machine, or "unknown host".
std::string host_name();

}  // namespace backplane::tool
