// SPDX-License-Identifier: Apache-2.0
//
// A rejection of a plugin file says in one sentence what is wrong and what to do about it.
#pragma once

#include <string>
#include <utility>

#include "backplane/abi/version.h"
#include "error.hpp"

namespace backplane::core::plugin {

struct Remedy {
  int32_t status;  // whose fault it is
  const char* text;
};

inline constexpr Remedy kNoPlugin = {BP_INVALID, "only plugins may be named backplane_*.so here: move or rename it"};
inline constexpr Remedy kDamaged = {BP_INVALID, "copy it here again, or build it anew"};
inline constexpr Remedy kOtherMachine = {BP_UNSUPPORTED, "build it for this machine"};
inline constexpr Remedy kOlder = {BP_UNSUPPORTED, "build it with the headers of this core"};
inline constexpr Remedy kNewer = {BP_UNSUPPORTED, "use a newer Backplane, or a plugin that needs less"};
inline constexpr Remedy kUnloadable = {BP_UNSUPPORTED, "install what is missing, or build it for this system"};
inline constexpr Remedy kBroken = {BP_INTERNAL, "remove it until its author has mended it"};
inline constexpr Remedy kBadNote = {BP_INVALID, kBroken.text};

// reject(kDamaged, "it is truncated: it ends after {} bytes", size). Throws core::Error.
template <typename... Args>
[[noreturn]] void reject(const Remedy& remedy, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(remedy.status, fmt::format("{}; {}", fmt::format(format, std::forward<Args>(args)...), remedy.text));
}

}  // namespace backplane::core::plugin
