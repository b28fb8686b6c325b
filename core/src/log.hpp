// SPDX-License-Identifier: Apache-2.0
//
// Log lines of the core and its plugins: to the program's own function if it set one, else to stderr from the level
// that BACKPLANE_LOG names (debug, info, warn, error, off; warn by default).
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "backplane/abi/host.h"
#include "backplane/base/log_limit.hpp"

namespace backplane::core {

using LogFunction = void (*)(void* ctx, uint32_t level, const char* text);

void set_log(LogFunction log, void* ctx);
void write_log(uint32_t level, const std::string& text) noexcept;

// A warning, unless this process has logged the same one.
void warn_once(const std::string& text);

template <typename... Args>
void log(uint32_t level, fmt::format_string<Args...> format, Args&&... args) {
  write_log(level, fmt::format(format, std::forward<Args>(args)...));
}

// Logs lines of one kind, at most one per period of `limit`. The format is applied only to lines that are logged.
template <typename... Args>
void log(base::LogLimit& limit, uint32_t level, fmt::format_string<Args...> format, Args&&... args) {
  if (const auto omitted = limit.admit()) {
    write_log(level, fmt::format(format, std::forward<Args>(args)...) + *omitted);
  }
}

}  // namespace backplane::core
