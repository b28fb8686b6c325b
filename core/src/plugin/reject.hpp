// SPDX-License-Identifier: Apache-2.0
//
// Rejections of plugin files: one sentence with the fault and the remedy.
#pragma once

#include <string>
#include <system_error>
#include <utility>

#include "backplane/abi/version.h"
#include "error.hpp"

namespace backplane::core::plugin {

struct Remedy {
  int32_t status;  // who must act
  const char* text;
};

inline constexpr Remedy kNoPlugin = {BP_INVALID, "only plugins may be named backplane_*.so here: move or rename it"};
inline constexpr Remedy kDamaged = {BP_INVALID, "copy it here again, or rebuild it"};
inline constexpr Remedy kOtherMachine = {BP_UNSUPPORTED, "build it for this machine"};
inline constexpr Remedy kOlder = {BP_UNSUPPORTED, "build it with the headers of this core"};
inline constexpr Remedy kNewer = {BP_UNSUPPORTED, "use a newer Backplane, or a plugin that needs less"};
inline constexpr Remedy kUnloadable = {BP_UNSUPPORTED, "install what is missing, or build it for this system"};
inline constexpr Remedy kBroken = {BP_INTERNAL, "remove or update this plugin"};
inline constexpr Remedy kBadNote = {BP_INVALID, kBroken.text};

// reject(kDamaged, "it is truncated: it ends after {} bytes", size). Throws core::Error.
template <typename... Args>
[[noreturn]] void reject(const Remedy& remedy, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(remedy.status, fmt::format("{}; {}", fmt::format(format, std::forward<Args>(args)...), remedy.text));
}

// A failure of a system call: "it cannot be opened: Permission denied".
[[noreturn]] inline void fail_errno(const std::string& what, int code) {
  throw Error(BP_RESOURCE, fmt::format("{}: {}", what, std::generic_category().message(code)), -1, code);
}

}  // namespace backplane::core::plugin
