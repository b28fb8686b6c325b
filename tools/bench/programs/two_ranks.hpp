// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>

namespace backplane::bench {

// Runs body(rank, directory) for ranks 0 (this process) and 1 (a child); `directory` is empty, for both to meet in.
// Returns what main returns: 1 if a rank failed, after a line on stderr. No thread may run before.
// `pin`: each with all its threads on a core of its own.
int on_two_ranks(bool pin, const std::function<void(int rank, const std::filesystem::path& directory)>& body);

}  // namespace backplane::bench
