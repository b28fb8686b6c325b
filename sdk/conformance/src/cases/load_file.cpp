// SPDX-License-Identifier: Apache-2.0
//
// Group `load`: rules about the file, checked before any of its code runs.
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>

#include "groups.hpp"
#include "load_elf.hpp"
#include "load_open.hpp"

namespace backplane::conformance::load {
namespace {

// The file's structure. Leaves the body if the file is not a shared object.
ElfFile structure(Rank& rank) {
  rank.step("reading the file's structure");
  ElfFile file = read_elf(rank.run().path);
  rank.require(file.problem.empty(), "a shared object for this machine", rank.run().path + ": " + file.problem);
  return file;
}

// Symbols added by a compiler's instrumentation do not count.
bool instrumentation(const std::string& name) {
  for (const char* prefix : {"__asan_", "__odr_asan", "__tsan_", "__ubsan_", "__lsan_", "__msan_", "__hwasan_",
                             "__sanitizer_", "__sancov_", "__gcov_", "__llvm_"}) {
    if (name.compare(0, std::char_traits<char>::length(prefix), prefix) == 0) return true;
  }
  return false;
}

void opens(Rank& rank) { open_plugin(rank); }

void well_formed(Rank& rank) { structure(rank); }

// dlopen may have taken a symbol from the program; dlsym on the handle looks into the file and its own libraries only.
bool resolved_by_its_own(void* handle, const Symbol& symbol) {
  dlerror();
  if (dlsym(handle, symbol.name.c_str()) != nullptr || dlerror() == nullptr) return true;
  return !symbol.version.empty() && dlvsym(handle, symbol.name.c_str(), symbol.version.c_str()) != nullptr;
}

void resolve_now(Rank& rank) {
  const Opened opened = open_plugin(rank);
  for (const Symbol& symbol : structure(rank).symbols) {
    if (symbol.section != SHN_UNDEF || symbol.bind == STB_WEAK || instrumentation(symbol.name)) continue;
    rank.check(resolved_by_its_own(opened.handle, symbol),
               "every symbol is defined by the plugin or by a library that it names as needed",
               "only the program could define " + symbol.name);
  }
}

void only_one_export(Rank& rank) {
  bool found = false;
  for (const Symbol& symbol : structure(rank).symbols) {
    if (symbol.section == SHN_UNDEF || symbol.section == SHN_ABS || !symbol.visible || symbol.bind == STB_LOCAL ||
        instrumentation(symbol.name)) {
      continue;
    }
    found = found || symbol.name == BP_PLUGIN_SYMBOL;
    rank.check(symbol.name == BP_PLUGIN_SYMBOL, "no symbol is exported but " BP_PLUGIN_SYMBOL,
               symbol.name + " is also exported; link with a version script");
    if (symbol.name == BP_PLUGIN_SYMBOL) {
      rank.check(symbol.type == STT_OBJECT, BP_PLUGIN_SYMBOL " is data",
                 fmt::format("its symbol has type {}", int{symbol.type}));
      rank.check(symbol.size == 0 || symbol.size >= offsetof(bp_plugin, reserved), BP_PLUGIN_SYMBOL " is a bp_plugin",
                 fmt::format("its symbol has {} bytes", symbol.size));
    }
  }
  rank.check(found, BP_PLUGIN_SYMBOL " is exported", "it is not");
}

void no_unique_symbols(Rank& rank) {
  for (const Symbol& symbol : structure(rank).symbols) {
    rank.check(symbol.bind != STB_GNU_UNIQUE || symbol.section == SHN_UNDEF,
               "no symbol is bound as STB_GNU_UNIQUE, which all copies in a process share",
               symbol.name + " is; compile with -fno-gnu-unique, or link with a version script");
  }
}

void no_needed_of_ours(Rank& rank) {
  const ElfFile file = structure(rank);
  for (const std::string& library : file.needed) {
    rank.check(library.find("libbackplane") == std::string::npos, "a plugin is linked to nothing of Backplane",
               "it needs " + library);
  }
  for (const Symbol& symbol : file.symbols) {
    rank.check(symbol.section != SHN_UNDEF || symbol.name.compare(0, 3, "bp_") != 0,
               "a plugin takes no symbol from the core", "it wants " + symbol.name);
  }
}

void one_note(Rank& rank) {
  const ElfFile file = structure(rank);
  rank.require(file.notes.size() == 1, "one note in " BP_NOTE_SECTION, fmt::format("{} of them", file.notes.size()));
}

}  // namespace

std::vector<Case> file_cases() {
  const Needs file = {.ops = 0, .file = true};
  const Execution bare = {.worlds = {1}, .deadline = 10 * kSecond, .loads = false};
  return {
      Case("opens", "dlopen loads the file without ending the process, throwing or hanging", opens, file, bare),
      Case("well-formed", "the file is a shared object for this machine, complete and consistent", well_formed, file,
           bare),
      Case("resolve-now", "every symbol is resolved at load, none by the program", resolve_now, file, bare),
      Case("only-one-export", "the one symbol exported is " BP_PLUGIN_SYMBOL ", and it is data", only_one_export, file,
           bare),
      Case("no-unique-symbols", "no symbol is shared between copies of the file", no_unique_symbols, file, bare),
      Case("no-needed-of-ours", "the file links no library of Backplane", no_needed_of_ours, file, bare),
      Case("one-note", "there is exactly one note", one_note, file, bare),
  };
}

}  // namespace backplane::conformance::load
