// SPDX-License-Identifier: Apache-2.0
//
// Loads a plugin into this process. Loaded plugins are trusted code: from dlopen on, their constructors have run, and
// nothing that is checked afterwards can take that back.
#pragma once

#include <string>

#include "backplane/abi/abi.h"
#include "plugin/note.hpp"

namespace backplane::core::plugin {

// Loads the file whose `note` was read before (read_plugin_file, scan, find) and checks that it keeps the contract and
// agrees with the note. The file must still be the one that was read. One file is loaded once, however often and under
// whatever path it is asked for, and never unloaded, so the result is valid for the life of the process; it is checked
// anew on every call. Throws core::Error; the text begins with the path. BP_UNSUPPORTED: does not load here (a missing
// library, an unresolved symbol). BP_INTERNAL: the plugin is broken. BP_INVALID: the file changed. [any], blocks on the
// disk; no lock is held while constructors run.
const bp_plugin* load(const std::string& path, const Note& note);

}  // namespace backplane::core::plugin
