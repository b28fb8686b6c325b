// SPDX-License-Identifier: Apache-2.0
//
// Where output goes: the command's own stdout or stderr. What is written waits in memory until the descriptor takes it,
// so that a reader that stalls (a pager) never keeps the command from handling signals.
#pragma once

#include <string>
#include <string_view>

namespace backplane::tool {

class Output {
 public:
  explicit Output(int fd);

  // Whoever has more to say waits as long as this is true.
  bool full() const { return pending_.size() >= kLimit; }
  bool empty() const { return pending_.empty(); }
  bool broken() const { return broken_; }  // nobody reads any more
  bool coloured() const { return coloured_; }
  int fd() const { return fd_; }

  // Appends. `speaker` tells whose words these are: the unfinished line of another speaker is ended first.
  // `prefix` stands before each line that begins here.
  void write(const void* speaker, std::string_view prefix, std::string_view text);
  // The speaker says no more: its line is ended if it is unfinished.
  void end_line(const void* speaker);

  // Writes a little; to be called when poll() has said POLLOUT.
  void flush_some();

 private:
  static constexpr size_t kLimit = size_t{256} * 1024;

  const int fd_;
  const bool coloured_;
  bool broken_ = false;
  const void* unfinished_ = nullptr;  // whose line has no end yet
  std::string pending_;
};

}  // namespace backplane::tool
