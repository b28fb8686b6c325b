// SPDX-License-Identifier: Apache-2.0
//
// The static check of plugin files: any bytes give a note or a core::Error. An accepted note meets the invariants that
// the core relies on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "backplane/abi/abi.h"
#include "coverage.hpp"
#include "error.hpp"
#include "options/names.hpp"
#include "plugin/elf_file.hpp"

namespace {

using backplane::core::plugin::Note;

Coverage accepted("a file was accepted");
Coverage rejected("a file was rejected");

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

// The error text of a rejection must be printable for any content.
template <typename Read>
void attempt(Read&& read) {
  try {
    check(read());
    accepted.mark();
  } catch (const backplane::core::Error& e) {
    require(e.status() == BP_INVALID || e.status() == BP_UNSUPPORTED);
    require(*e.what() != '\0' && backplane::core::printable(e.what()));
    rejected.mark();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  attempt([bytes] { return backplane::core::plugin::read_note(bytes); });
  attempt([bytes] { return backplane::core::plugin::parse_note(bytes); });
  return 0;
}
