// SPDX-License-Identifier: Apache-2.0
//
// Where plugins are looked for, and which of them may be used: all that the environment has to say about it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace backplane::core::plugin {

struct SearchDirectory {
  std::string path;    // absolute
  std::string origin;  // why it is searched: "BACKPLANE_PLUGIN_PATH", "beside libbackplane", "built in" ...
};

// Which plugins may be used.
struct Policy {
  std::vector<std::string> allow;  // ids; empty: all
  std::vector<std::string> deny;   // ids; stronger than `allow`
  bool allow_unsafe = false;       // skip the checks of owners and permissions

  // Why this backend may not be used, empty if it may.
  std::string objection(std::string_view id) const;
};

struct SearchPath {
  std::vector<SearchDirectory> directories;  // in order of precedence, each once
  Policy policy;
};

// Does this process run with more rights than its caller (AT_SECURE)?
bool runs_secure();

// Reads the environment anew on every call. `secure` ignores all of it: only built-in directories count.
SearchPath search_path(bool secure = runs_secure());

}  // namespace backplane::core::plugin
