// SPDX-License-Identifier: Apache-2.0
#include "load_open.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "backplane/base/descriptor.hpp"
#include "load_elf.hpp"

namespace backplane::conformance::load {
namespace {

// dlopen; describes an exception of a constructor in `why`.
void* open_library(const std::string& path, std::string& why) {
  try {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) why = dlerror();
    return handle;
  } catch (const std::exception& error) {
    why = std::string("a constructor threw: ") + error.what();
  } catch (...) {
    why = "a constructor threw an exception";
  }
  return nullptr;
}

// The entry, if it is defined in the file itself and is data.
const bp_plugin* entry_of(void* handle, std::string& why) {
  void* address = dlsym(handle, BP_PLUGIN_SYMBOL);
  if (address == nullptr) {
    why = "it exports no " BP_PLUGIN_SYMBOL;
    return nullptr;
  }
  link_map* own = nullptr;
  Dl_info info = {};
  void* owner = nullptr;
  void* symbol = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &own) != 0 || dladdr1(address, &info, &owner, RTLD_DL_LINKMAP) == 0 ||
      owner != own) {
    why = std::string("the " BP_PLUGIN_SYMBOL " that it shows belongs to ") +
          (info.dli_fname == nullptr ? "no file" : info.dli_fname);
    return nullptr;
  }
  if (dladdr1(address, &info, &symbol, RTLD_DL_SYMENT) != 0 && symbol != nullptr) {
    const auto* entry = static_cast<const ElfW(Sym)*>(symbol);
    if (ELF64_ST_TYPE(entry->st_info) == STT_FUNC) {
      why = "its " BP_PLUGIN_SYMBOL " is a function";
      return nullptr;
    }
    if (entry->st_size != 0 && entry->st_size < offsetof(bp_plugin, reserved)) {
      why = fmt::format("its " BP_PLUGIN_SYMBOL " has {} bytes", entry->st_size);
      return nullptr;
    }
  }
  return static_cast<const bp_plugin*>(address);
}

// The file's bytes under another name, which lives as long as the process.
std::string copy_of(const std::string& path, std::string& why) {
  const base::Descriptor from(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int to = memfd_create("backplane-copy", MFD_CLOEXEC);
  if (!from || to < 0) why = std::strerror(errno);
  std::array<char, 65536> block;
  while (why.empty()) {
    const ssize_t got = ::read(from.get(), block.data(), block.size());
    if (got < 0 || (got > 0 && ::write(to, block.data(), static_cast<size_t>(got)) != got)) why = std::strerror(errno);
    if (got <= 0) break;
  }
  return "/proc/self/fd/" + std::to_string(to);
}

const bp_plugin* open_copy(const std::string& path, std::string& harness_error, std::string& why) {
  const std::string copy = copy_of(path, harness_error);
  if (!harness_error.empty()) return nullptr;
  void* handle = open_library(copy, why);
  return handle == nullptr ? nullptr : entry_of(handle, why);
}

}  // namespace

Opened open_plugin(Rank& rank) {
  const std::string& path = rank.run().path;
  if (path.empty()) return {nullptr, rank.run().plugin};
  rank.step("reading the file's structure");
  const std::string problem = read_elf(path).problem;
  rank.require(problem.empty(), "a shared object for this machine", path + ": " + problem);
  rank.step("opening the plugin");
  std::string why;
  Opened opened;
  opened.handle = open_library(path, why);
  rank.require(opened.handle != nullptr, "a file that opens with all its symbols resolved at once", why);
  opened.plugin = entry_of(opened.handle, why);
  rank.require(opened.plugin != nullptr, "the entry " BP_PLUGIN_SYMBOL ", a bp_plugin", why);
  rank.step("after opening the plugin");
  return opened;
}

const bp_plugin& second_copy(Rank& rank) {
  struct Copy {
    std::string harness_error;
    std::string why;
    const bp_plugin* plugin;
  };
  static const Copy copy = [&rank] {
    Copy made;
    made.plugin = open_copy(rank.run().path, made.harness_error, made.why);
    return made;
  }();
  if (!copy.harness_error.empty()) rank.harness_error("cannot copy " + rank.run().path + ": " + copy.harness_error);
  rank.require(copy.plugin != nullptr, "a copy of the file that opens beside the first", copy.why);
  return *copy.plugin;
}

bool printable(const char* text) {
  constexpr size_t kMax = 4096;
  if (text == nullptr) return false;
  const std::string_view view(text, strnlen(text, kMax));
  if (view.size() == kMax || !valid_utf8(view)) return false;
  for (const char c : view) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  return true;
}

}  // namespace backplane::conformance::load
