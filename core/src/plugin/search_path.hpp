// SPDX-License-Identifier: Apache-2.0
//
// The directories that are searched for plugins, and the plugins that may be used, from the environment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "environment.hpp"

namespace backplane::core::plugin {

struct SearchDirectory {
  std::string path;    // absolute
  std::string origin;  // why it is searched: "BACKPLANE_PLUGIN_PATH", "beside libbackplane", "built in" ...
};

// Which plugins may be used.
struct Policy {
  std::vector<std::string> allow;  // ids; empty: all
  std::vector<std::string> deny;   // ids; overrides `allow`
  bool allow_unsafe = false;       // skip the checks of owners and permissions

  // Why this backend must not be used, empty if it may: "denied by BACKPLANE_PLUGINS_DENY; ...".
  std::string objection(std::string_view id) const;
};

struct SearchPath {
  std::vector<SearchDirectory> directories;  // in order of precedence, each once
  Policy policy;
};

// Reads the environment on every call. `secure`: ignores it and uses only built-in directories.
SearchPath search_path(bool secure = runs_secure());

}  // namespace backplane::core::plugin
