// SPDX-License-Identifier: Apache-2.0
#include "plugin/elf_file.hpp"

#include <vector>

#include "backplane/abi/abi.h"
#include "plugin/reject.hpp"

namespace backplane::core::plugin {
namespace {

const Remedy& remedy_of(base::ElfError::Kind kind) {
  switch (kind) {
    case base::ElfError::Kind::kNoSharedObject:
      return kNoPlugin;
    case base::ElfError::Kind::kOtherMachine:
      return kOtherMachine;
    case base::ElfError::Kind::kDamaged:
      break;
  }
  return kDamaged;
}

std::vector<std::vector<std::byte>> notes_of(const base::ByteSource& file) {
  try {
    return base::ElfFile(file).notes(BP_NOTE_NAME, BP_NOTE_TYPE);
  } catch (const base::ElfError& error) {
    reject(remedy_of(error.kind), "{}", error.text);
  }
}

}  // namespace

Note read_note(const base::ByteSource& file) {
  const std::vector<std::vector<std::byte>> notes = notes_of(file);
  if (notes.empty()) reject(kNoPlugin, "it has no {} note: it is not a Backplane plugin", BP_NOTE_SECTION);
  if (notes.size() > 1) reject(kBadNote, "it has {} {} notes, not one", notes.size(), BP_NOTE_SECTION);
  return parse_note(notes.front());
}

Note read_note(std::span<const std::byte> file) { return read_note(base::MemorySource(file)); }

}  // namespace backplane::core::plugin
