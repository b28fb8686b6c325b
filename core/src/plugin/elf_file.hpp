// SPDX-License-Identifier: Apache-2.0
//
// Reads the Backplane note of a shared object without running any of its code, and rejects files that would make dlopen
// crash or hang. The input may be any bytes (tests/fuzz/elf_note.cpp).
#pragma once

#include <cstddef>
#include <span>

#include "backplane/base/elf.hpp"
#include "plugin/note.hpp"

namespace backplane::core::plugin {

// Throws core::Error with the reason why this is not a plugin for this core; the reason completes "rejected: ".
// BP_UNSUPPORTED: made for another machine or ABI. BP_INVALID: not a plugin, or damaged. Allocates at most 1 MiB at a
// time, for any input.
Note read_note(const base::ByteSource& file);
Note read_note(std::span<const std::byte> file);

}  // namespace backplane::core::plugin
