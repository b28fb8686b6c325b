// SPDX-License-Identifier: Apache-2.0
//
// Plugin files that were overwritten in place.
#pragma once

#include <ctime>
#include <string>

namespace backplane::tool {

// A program that uses a plugin ends with SIGBUS or SIGSEGV if the file is overwritten in place (cp): its mapping shows
// the new bytes, or none. The end of a sentence, "; PATH was overwritten ...", that names the plugin files on the
// search path that existed before `since` and were written after it. Empty if there is none.
std::string overwritten_plugins(const timespec& since);

}  // namespace backplane::tool
