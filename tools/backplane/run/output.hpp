// SPDX-License-Identifier: Apache-2.0
//
// Buffered output to stdout or stderr. The text waits in memory until the descriptor accepts it, so a stalled reader
// such as a pager does not keep the launcher from handling signals.
#pragma once

#include <string>
#include <string_view>

namespace backplane::tool {

class Output {
 public:
  explicit Output(int fd);

  // Writers must stop while this is true.
  bool full() const { return pending_.size() >= kLimit; }
  bool empty() const { return pending_.empty(); }
  bool broken() const { return broken_; }  // the reader has closed its end
  bool coloured() const { return coloured_; }
  int fd() const { return fd_; }

  // Appends text of one source. Ends the unfinished line of another source first. Writes `prefix` if a line begins.
  void write(const void* source, std::string_view prefix, std::string_view text);
  // Ends the source's line if it is unfinished.
  void end_line(const void* source);

  // Writes at most PIPE_BUF bytes. Call it after poll() reported POLLOUT.
  void flush_some();

 private:
  static constexpr size_t kLimit = size_t{256} * 1024;

  const int fd_;
  const bool coloured_;
  bool broken_ = false;
  const void* unfinished_ = nullptr;  // the source whose line has no newline yet
  std::string pending_;
};

}  // namespace backplane::tool
