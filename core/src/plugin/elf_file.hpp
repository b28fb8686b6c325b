// SPDX-License-Identifier: Apache-2.0
//
// Reads the Backplane note of a shared object without running a byte of it, and checks on the way what would make
// dlopen crash or hang. Everything is reached through program headers, which is what the dynamic loader uses, too; a
// file without section headers is fine. The input may be any bytes at all (tests/fuzz/elf_note.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/note.hpp"

namespace backplane::core::plugin {

// Bytes to read from. The caller stays below size().
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Fills `into` from `offset` on. Throws core::Error if the bytes cannot be had.
  virtual void read(uint64_t offset, std::span<std::byte> into) const = 0;
};

// Throws core::Error with the reason why this is not a plugin for this core; the reason reads on after "rejected: ".
// BP_UNSUPPORTED: made for another machine or ABI. BP_INVALID: not a plugin, or damaged. Allocates at most 1 MiB at a
// time, whatever the bytes say.
Note read_note(const ByteSource& file);
Note read_note(std::span<const std::byte> file);

}  // namespace backplane::core::plugin
