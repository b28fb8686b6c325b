// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace backplane::core {

// "host, pid 17" of this process.
std::string process_identity();

// Whether such an identity is of a process of this host that has ended.
bool has_ended(const std::string& identity);

}  // namespace backplane::core
