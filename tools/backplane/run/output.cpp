// SPDX-License-Identifier: Apache-2.0
#include "run/output.hpp"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace backplane::tool {
namespace {

// https://no-color.org: any non-empty value disables colours.
bool wants_colours(int fd) {
  const char* off = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return (off == nullptr || *off == '\0') && !dumb && ::isatty(fd) == 1;
}

}  // namespace

Output::Output(int fd) : fd_(fd), coloured_(wants_colours(fd)) {}

void Output::write(const void* source, std::string_view prefix, std::string_view text) {
  if (broken_ || text.empty()) return;
  if (unfinished_ != source) {
    end_line(unfinished_);
    pending_ += prefix;
  }
  pending_ += text;
  unfinished_ = text.back() == '\n' ? nullptr : source;
}

void Output::end_line(const void* source) {
  if (broken_ || source == nullptr || unfinished_ != source) return;
  pending_ += '\n';
  unfinished_ = nullptr;
}

void Output::flush_some() {
  // A pipe with POLLOUT accepts PIPE_BUF bytes without blocking.
  const ssize_t size = ::write(fd_, pending_.data(), std::min<size_t>(pending_.size(), PIPE_BUF));
  if (size >= 0) {
    pending_.erase(0, static_cast<size_t>(size));
  } else if (errno != EINTR && errno != EAGAIN) {
    broken_ = true;
    pending_.clear();
  }
}

}  // namespace backplane::tool
