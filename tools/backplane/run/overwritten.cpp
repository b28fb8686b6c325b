// SPDX-License-Identifier: Apache-2.0
#include "run/overwritten.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "backplane/backplane.h"

namespace backplane::tool {
namespace {

// Those on the search path, also damaged ones.
std::set<std::string> plugin_files() {
  char* text = nullptr;
  if (bp_registry_list(nullptr, &text, nullptr) != BP_OK) return {};
  const std::unique_ptr<char, void (*)(void*)> owner(text, bp_free);
  const auto list = nlohmann::json::parse(text);
  std::set<std::string> files;
  for (const char* kind : {"backends", "rejected"}) {
    for (const auto& entry : list[kind]) files.insert(entry["file"].get<std::string>());
  }
  return files;
}

// A file that was replaced by another (mv) is younger than `since`, or has an older content.
bool is_overwritten(const std::string& path, const timespec& since) {
  struct statx status {};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_MTIME | STATX_BTIME, &status) != 0) return false;
  if ((status.stx_mask & STATX_BTIME) == 0) return false;
  const std::tuple start(since.tv_sec, since.tv_nsec);
  return std::tuple(status.stx_btime.tv_sec, status.stx_btime.tv_nsec) < start &&
         std::tuple(status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec) > start;
}

}  // namespace

std::string overwritten_plugins(const timespec& since) {
  std::string text;
  for (const std::string& path : plugin_files()) {
    if (is_overwritten(path, since)) text += (text.empty() ? "" : ", ") + path;
  }
  if (text.empty()) return text;
  return fmt::format(
      "; {} was overwritten while the job ran, which ends programs that use it: replace plugins by mv or "
      "install, not by cp",
      text);
}

}  // namespace backplane::tool
