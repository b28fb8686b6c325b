// SPDX-License-Identifier: Apache-2.0
//
// The static check of plugin files answers any bytes with a note or with core::Error, and with nothing else; a note
// that it lets pass keeps what the rest of the core relies on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "backplane/abi/abi.h"
#include "error.hpp"
#include "options/names.hpp"
#include "plugin/elf_file.hpp"
#include "reached.hpp"

namespace {

using backplane::core::plugin::Note;

Reached found_sound("a file was found sound");
Reached refused("a file was refused");

void require(bool truth) {
  if (!truth) std::abort();
}

void check(const Note& note) {
  require(!note.backends.empty() && note.backends.size() <= BP_NOTE_MAX_BACKENDS);
  require(note.need_minor <= BP_ABI_MINOR && note.need_minor <= note.built_minor);
  for (size_t i = 0; i < note.backends.size(); ++i) {
    const auto& backend = note.backends[i];
    require(backplane::core::valid_id(backend.id) && note.index_of(backend.id) == static_cast<int>(i));
    require(!backend.version.empty() && backplane::core::printable(backend.version) && backend.kinds != 0);
  }
}

// A rejection is one printable sentence, whatever the file holds.
template <typename Read>
void attempt(Read&& read) {
  try {
    check(read());
    found_sound.mark();
  } catch (const backplane::core::Error& e) {
    require(e.status() == BP_INVALID || e.status() == BP_UNSUPPORTED);
    require(*e.what() != '\0' && backplane::core::printable(e.what()));
    refused.mark();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  attempt([bytes] { return backplane::core::plugin::read_note(bytes); });
  attempt([bytes] { return backplane::core::plugin::parse_note(bytes); });
  return 0;
}
