// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer: the static reader answers any bytes with a note or with core::Error, and with nothing else.
// cmake -DBACKPLANE_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++; fuzz_note CORPUS, seeded with a few good plugins.
#include <cstddef>
#include <cstdint>
#include <span>

#include "error.hpp"
#include "plugin/elf_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    static_cast<void>(backplane::core::plugin::read_note(std::as_bytes(std::span(data, size))));
  } catch (const backplane::core::Error&) {  // the reason for a rejection
  }
  return 0;
}
