// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace backplane::core {

// "host, pid 17" of this process.
std::string process_identity();

// kUnknown: not a process of this host, or not visible to this process.
enum class ProcessState { kUnknown, kRuns, kEnded };
// The state of the process with such an identity.
ProcessState process_state(const std::string& identity);

}  // namespace backplane::core
