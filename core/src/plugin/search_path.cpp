// SPDX-License-Identifier: Apache-2.0
#include "plugin/search_path.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "environment.hpp"
#include "text.hpp"

#ifndef BACKPLANE_INSTALL_LIBDIR
#define BACKPLANE_INSTALL_LIBDIR "lib"
#endif

namespace backplane::core::plugin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSubdirectory = "backplane/plugins";

// A comma-separated list of ids. Ignores spaces and case.
std::vector<std::string> ids(const char* name) {
  std::vector<std::string> result;
  for (const std::string& part : split(variable(name).value_or(""), ',')) {
    std::string id = lower(part);
    std::erase_if(id, [](char c) { return c == ' ' || c == '\t'; });
    if (!id.empty()) result.push_back(id);
  }
  return result;
}

// Adds a directory once. Relative ones are resolved against the working directory.
void add(SearchPath& to, const fs::path& directory, const char* origin) {
  std::error_code error;
  fs::path path = fs::absolute(directory, error).lexically_normal();
  if (error) return;
  if (!path.has_filename()) path = path.parent_path();  // "/a/b/" is "/a/b"
  const auto same = [&path](const SearchDirectory& other) { return other.path == path; };
  if (std::any_of(to.directories.begin(), to.directories.end(), same)) return;
  to.directories.push_back({path.string(), origin});
}

void add_user_directory(SearchPath& to) {
  // The XDG Base Directory Specification says to ignore a relative XDG_DATA_HOME.
  const fs::path data = variable("XDG_DATA_HOME").value_or("");
  const fs::path home = variable("HOME").value_or("");
  if (data.is_absolute()) {
    add(to, data / kSubdirectory, "XDG_DATA_HOME");
  } else if (home.is_absolute()) {
    add(to, home / ".local/share" / kSubdirectory, "HOME");
  }
}

// Beside the library, so that an installation can be moved.
void add_own_directory(SearchPath& to) {
  Dl_info info{};
  void* extra = nullptr;
  const auto* own = reinterpret_cast<const void*>(&add_own_directory);
  if (::dladdr1(own, &info, &extra, RTLD_DL_LINKMAP) == 0 || extra == nullptr) return;
  const char* name = static_cast<const link_map*>(extra)->l_name;
  const bool executable = name == nullptr || *name == '\0';  // the core is linked into the program itself
  std::error_code error;
  const fs::path file = executable ? fs::read_symlink("/proc/self/exe", error) : fs::canonical(name, error);
  if (error) return;
  const fs::path directory = file.parent_path();
  add(to, directory / kSubdirectory, executable ? "beside the program" : "beside libbackplane");
  if (executable) add(to, directory / "../lib" / kSubdirectory, "beside the program");
}

}  // namespace

std::string Policy::objection(std::string_view id) const {
  const auto lists = [id](const std::vector<std::string>& list) {
    return std::find(list.begin(), list.end(), id) != list.end();
  };
  if (lists(deny)) return "denied by BACKPLANE_PLUGINS_DENY; remove it from that list";
  if (!allow.empty() && !lists(allow))
    return "not named in BACKPLANE_PLUGINS_ALLOW; add it to the list or unset the variable";
  return {};
}

SearchPath search_path(bool secure) {
  SearchPath result;
  if (!secure) {
    for (const auto& part : split(variable("BACKPLANE_PLUGIN_PATH").value_or(""), ':')) {
      if (!part.empty()) add(result, part, "BACKPLANE_PLUGIN_PATH");
    }
    add_user_directory(result);
    result.policy = {ids("BACKPLANE_PLUGINS_ALLOW"), ids("BACKPLANE_PLUGINS_DENY"),
                     variable_is_true("BACKPLANE_ALLOW_UNSAFE_PLUGINS")};
  }
  add_own_directory(result);
  const fs::path libdir = BACKPLANE_INSTALL_LIBDIR;
  for (const char* prefix : {"/usr/local", "/usr"}) {
    if (libdir.is_relative()) add(result, prefix / libdir / kSubdirectory, "built in");
    add(result, fs::path(prefix) / "lib" / kSubdirectory, "built in");
  }
  return result;
}

}  // namespace backplane::core::plugin
