// SPDX-License-Identifier: Apache-2.0
#include "common/failure.hpp"

#include <fmt/format.h>
#include <string.h>

#include <cerrno>
#include <system_error>

namespace backplane::tool {

void fail_system(const std::string& what) {
  const int number = errno;
  throw Failure(kFailed, fmt::format("{}: {}", what, errno_text(number)));
}

std::string errno_text(int number) { return std::generic_category().message(number); }

std::string signal_text(int number) {
  const char* text = ::sigdescr_np(number);
  return text == nullptr ? "unknown signal" : text;
}

}  // namespace backplane::tool
