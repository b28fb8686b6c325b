// SPDX-License-Identifier: Apache-2.0
//
// Reads a plugin file without running its code. The file may have any content.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace backplane::conformance::load {

// An entry of the dynamic symbol table.
struct Symbol {
  std::string name;
  std::string version;  // that an undefined symbol requires; may be empty
  unsigned char bind;   // STB_...
  unsigned char type;   // STT_...
  bool visible;         // to other objects
  uint16_t section;     // SHN_UNDEF: not defined here
  uint64_t size;        // bytes
};

struct ElfFile {
  // Why the file is not a shared object for this machine, as a clause. Empty if it is one; only then are the other
  // fields valid.
  std::string problem;
  std::vector<Symbol> symbols;
  std::vector<std::string> needed;  // DT_NEEDED
  std::vector<std::string> notes;   // the descriptions of the Backplane notes
};

// Reads the whole structure. Blocks only on the disk. Does not open a file that is not regular.
ElfFile read_elf(const std::string& path);

}  // namespace backplane::conformance::load
