// SPDX-License-Identifier: Apache-2.0
//
// Signals as something to poll for.
#pragma once

#include <signal.h>

#include <vector>

#include "common/process.hpp"

namespace backplane::tool {

// Blocks what a launcher handles (SIGCHLD and those that it forwards) in the calling thread and in those that it starts
// later, and ignores SIGPIPE. Signals that were ignored before, as by nohup, stay ignored.
class Signals {
 public:
  Signals();

  int fd() const { return descriptor_.get(); }
  // What has come since the last call.
  std::vector<int> take();
  // The first SIGINT, SIGTERM or SIGHUP that was taken; 0: none.
  int taken_end() const { return taken_end_; }
  // True if somebody wants the launcher to end. Takes nothing.
  bool asked_to_end() const;

  // What to restore in a child.
  const sigset_t& mask_before() const { return before_; }
  bool sigpipe_was_default() const { return sigpipe_was_default_; }

 private:
  Descriptor descriptor_;
  int taken_end_ = 0;
  sigset_t before_{};
  bool sigpipe_was_default_ = true;
};

}  // namespace backplane::tool
