// SPDX-License-Identifier: Apache-2.0
//
// Opens a plugin and records its side effects on the process.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "../case.hpp"
#include "backplane/base/utf8.hpp"

namespace backplane::conformance::load {

struct Opened {
  void* handle = nullptr;  // of dlopen; null if the plugin is linked in
  const bp_plugin* plugin = nullptr;
};

// Reads the file's structure, opens it with RTLD_NOW and finds its entry; leaves the body if any of it is wrong. A
// linked-in plugin is returned as it is.
Opened open_plugin(Rank& rank);

// A second image of the file in this process; the same one at each call. Leaves the body if it cannot be made.
const bp_plugin& second_copy(Rank& rank);

inline bool valid_utf8(std::string_view text) { return base::find_invalid_utf8(text) == std::string_view::npos; }
// The same without control characters, in at most 4 KiB; false for null.
bool printable(const char* text);

// The state of a process by name: directory, descriptors, threads, signal handlers, ...
using ProcessState = std::map<std::string, std::string>;
ProcessState process_state();
// Records a finding for each difference. `who` caused it: "loading the plugin".
void compare_process_state(Rank& rank, const ProcessState& before, const std::string& who);

}  // namespace backplane::conformance::load
