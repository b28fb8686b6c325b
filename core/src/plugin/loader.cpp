// SPDX-License-Identifier: Apache-2.0
#include "plugin/loader.hpp"

#include <dlfcn.h>
#include <link.h>

#include <map>
#include <mutex>
#include <utility>

#include "error.hpp"
#include "plugin/contract.hpp"
#include "plugin/plugin_file.hpp"
#include "plugin/reject.hpp"

namespace backplane::core::plugin {
namespace {

using FileKey = std::pair<uint64_t, uint64_t>;  // device and inode; the mapping keeps the inode from being reused

struct Loaded {
  std::mutex mutex;
  std::map<FileKey, void*> handles;
  std::map<std::string, FileKey> paths;
};

// Never destroyed: plugins stay loaded at exit.
Loaded& loaded() {
  static auto* const instance = new Loaded;
  return *instance;
}

FileKey key_of(const Note& note) { return {note.file.device, note.file.inode}; }

void check_unchanged(const std::string& path, const Note& note) {
  if (identify(path) != note.file) fail(BP_INVALID, "the file changed after it was checked; try again");
}

// The handle of a loaded file, else NULL.
void* handle_of(const std::string& path, const FileKey& key) {
  Loaded& all = loaded();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.handles.find(key); found != all.handles.end()) return found->second;
  // dlopen would return the old file of the same name.
  if (const auto known = all.paths.find(path); known != all.paths.end()) {
    fail(BP_INVALID, "the file was replaced after it was loaded; restart the program to use the new one");
  }
  return nullptr;
}

// An exception of a plugin's constructor ends the process: if it were caught, glibc would keep its lock and the next
// dlopen would block for ever. <dlfcn.h> declares dlopen as not throwing, so a compiler may drop the noexcept check of
// a direct call; the volatile pointer prevents that.
void* open_library(const char* path) noexcept {
  void* (*volatile const unseen_dlopen)(const char* path, int flags) = &::dlopen;
  return unseen_dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

void* open(const std::string& path, const FileKey& key) {
  void* const handle = open_library(path.c_str());
  if (handle == nullptr) reject(kUnloadable, "it cannot be loaded: {}", ::dlerror());
  Loaded& all = loaded();
  const std::lock_guard lock(all.mutex);
  all.handles.emplace(key, handle);  // another thread may have inserted the same handle
  all.paths.emplace(path, key);
  return handle;
}

// The entry of a plugin. dlsym also finds entries of libraries that the plugin links, which are refused.
const bp_plugin& entry_of(void* handle) {
  void* const address = ::dlsym(handle, BP_PLUGIN_SYMBOL);
  if (address == nullptr) reject(kBroken, "it does not export " BP_PLUGIN_SYMBOL);
  link_map* own = nullptr;
  Dl_info info{};
  void* owner = nullptr;
  void* symbol = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &own) != 0 || ::dladdr1(address, &info, &owner, RTLD_DL_LINKMAP) == 0 ||
      owner != own) {
    reject(kBroken, "its " BP_PLUGIN_SYMBOL " belongs to {}", info.dli_fname == nullptr ? "no file" : info.dli_fname);
  }
  if (::dladdr1(address, &info, &symbol, RTLD_DL_SYMENT) != 0 && symbol != nullptr) {
    const auto* entry = static_cast<const ElfW(Sym)*>(symbol);
    if (ELF64_ST_TYPE(entry->st_info) == STT_FUNC) reject(kBroken, "its " BP_PLUGIN_SYMBOL " is a function");
    if (entry->st_size != 0 && entry->st_size < offsetof(bp_plugin, reserved)) {
      reject(kBroken, "its " BP_PLUGIN_SYMBOL " has only {} bytes", entry->st_size);
    }
  }
  return *static_cast<const bp_plugin*>(address);
}

const bp_plugin* load_checked(const std::string& path, const Note& note) {
  check_unchanged(path, note);
  void* handle = handle_of(path, key_of(note));
  if (handle == nullptr) {
    handle = open(path, key_of(note));
    check_unchanged(path, note);
  }
  const bp_plugin& plugin = entry_of(handle);
  check_contract(plugin, note);
  return &plugin;
}

}  // namespace

const bp_plugin* load(const std::string& path, const Note& note) {
  try {
    return load_checked(path, note);
  } catch (const Error& e) {
    throw Error(e.status(), fmt::format("{}: {}", path, e.what()), e.peer_rank(), e.native_code());
  }
}

}  // namespace backplane::core::plugin
