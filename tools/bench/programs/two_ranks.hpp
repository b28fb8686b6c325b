// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>

namespace backplane::bench {

// Runs body(rank, directory) for ranks 0 (this process) and 1 (a child). `directory` is empty, for the rendezvous.
// Returns the exit status: 1 if a rank failed, which is reported on stderr. Call before any thread is started. `pin`:
// binds each rank with all its threads to its own core.
int on_two_ranks(bool pin, const std::function<void(int rank, const std::filesystem::path& directory)>& body);

}  // namespace backplane::bench
