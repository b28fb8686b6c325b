// SPDX-License-Identifier: Apache-2.0
//
// A plugin as a file: opened without side effects, judged by who could have written it, read as little as needed.
#pragma once

#include <optional>
#include <string>

#include "plugin/note.hpp"

namespace backplane::core::plugin {

// Reads the note of the file at `path`. Not fooled or stopped by a FIFO, directory, device, or a file that shrinks
// meanwhile. Unless `allow_unsafe`, refuses a file that, or whose directory, somebody other than root and the effective
// user owns or can write to. Throws core::Error with the reason, which does not repeat the path.
Note read_plugin_file(const std::string& path, bool allow_unsafe);

// What stands at `path` now; nothing if that cannot be told.
std::optional<FileId> identify(const std::string& path);

}  // namespace backplane::core::plugin
