// SPDX-License-Identifier: Apache-2.0
//
// Signals as a descriptor for poll().
#pragma once

#include <signal.h>

#include <vector>

#include "backplane/base/descriptor.hpp"

namespace backplane::tool {

// Blocks SIGCHLD and the signals that a launcher forwards, in the calling thread and in threads that it starts later,
// and ignores SIGPIPE. Signals that were ignored before, e.g. by nohup, stay ignored.
class Signals {
 public:
  Signals();

  int fd() const { return descriptor_.get(); }
  // The signals that arrived since the last call.
  std::vector<int> take();
  // The first SIGINT, SIGTERM or SIGHUP that take() returned; 0 for none.
  int taken_end() const { return taken_end_; }
  // True if such a signal is pending. Does not take it.
  bool asked_to_end() const;

  // The state to restore in a child.
  const sigset_t& mask_before() const { return before_; }
  bool sigpipe_was_default() const { return sigpipe_was_default_; }

 private:
  base::Descriptor descriptor_;
  int taken_end_ = 0;
  sigset_t before_{};
  bool sigpipe_was_default_ = true;
};

}  // namespace backplane::tool
