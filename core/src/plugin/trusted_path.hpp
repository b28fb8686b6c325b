// SPDX-License-Identifier: Apache-2.0
//
// Checks that only trusted users can decide which file is at a path.
#pragma once

#include <sys/stat.h>

#include <string>

namespace backplane::core::plugin {

// BP_UNSUPPORTED if a user other than root and the effective user owns or can write to a file with this status. `what`
// begins the sentence: "it", "its directory /a".
void check_trusted(const struct stat& status, const std::string& what);

// Follows the path from the root directory and checks all directories and symbolic links on the way; the file itself is
// not checked. BP_UNSUPPORTED if a user other than root and the effective user can exchange any of them. Directories
// with the sticky bit may be writable, except those that contain the file or a link to it: libraries beside a plugin
// are code of the plugin. After success, all uses of the path by name are safe: each step of the path is an entry of a
// directory that was checked before it.
void check_trusted_path(const std::string& path);

}  // namespace backplane::core::plugin
