// SPDX-License-Identifier: Apache-2.0
//
// A small process that ends a job's process groups when the launcher is killed. The kernel's parent-death signal ends
// the ranks themselves; the guard ends what they have started.
#pragma once

#include "common/process.hpp"

namespace backplane::tool {

class Guard {
 public:
  // Forks; call it while the process has one thread.
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // The write end of the pipe. A child writes its process group here and is killed with the launcher. The child does so
  // itself, since a launcher that is killed after fork could not. Do not reap it before dismiss(): a zombie keeps its
  // number from being reused.
  int line() const { return line_.get(); }
  void dismiss();

 private:
  Descriptor line_;
  pid_t pid_ = -1;
};

}  // namespace backplane::tool
