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

namespace backplane::core {

using LogFunction = void (*)(void* ctx, uint32_t level, const char* text);

void set_log(LogFunction log, void* ctx);
void write_log(uint32_t level, const std::string& text) noexcept;

template <typename... Args>
void log(uint32_t level, fmt::format_string<Args...> format, Args&&... args) {
  write_log(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace backplane::core
