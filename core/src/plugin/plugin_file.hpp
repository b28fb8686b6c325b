// SPDX-License-Identifier: Apache-2.0
//
// Reads plugin files without side effects and checks who could have written them.
#pragma once

#include <optional>
#include <string>

#include "plugin/note.hpp"

namespace backplane::core::plugin {

// Reads the note of the file at `path`. Refuses FIFOs, directories, devices and files that shrink meanwhile. Unless
// `allow_unsafe`, also refuses a file that a user other than root and the effective user can change or exchange
// (trusted_path.hpp). Reads the headers and the notes only. Throws core::Error with the reason, which does not contain
// the path of the file.
Note read_plugin_file(const std::string& path, bool allow_unsafe);

// The file that is at `path` now. Nothing if it cannot be examined.
std::optional<FileId> identify(const std::string& path);

}  // namespace backplane::core::plugin
