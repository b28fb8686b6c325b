// SPDX-License-Identifier: Apache-2.0
//
// Loads a plugin into this process. Loaded plugins are trusted code: dlopen runs their constructors before anything can
// be checked.
#pragma once

#include <string>

#include "backplane/abi/abi.h"
#include "plugin/note.hpp"

namespace backplane::core::plugin {

// Loads the file whose `note` was read before (read_plugin_file, scan, find) and checks that it keeps the contract and
// agrees with the note. A file is loaded once, under whatever path, and never unloaded: the result is valid for the
// life of the process. Every call repeats the checks. Throws core::Error; the text begins with the path.
// BP_UNSUPPORTED: it does not load here (a missing library, an unresolved symbol). BP_INTERNAL: the plugin is broken.
// BP_INVALID: the file changed since the note was read. Any thread; blocks on the disk; holds no lock while
// constructors run.
const bp_plugin* load(const std::string& path, const Note& note);

}  // namespace backplane::core::plugin
