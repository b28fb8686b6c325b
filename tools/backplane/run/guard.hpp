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

  // The group of a child that announces itself here is ended with the launcher. A child announces itself: were it to
  // run before the launcher told of it, a launcher killed in between would leave it. It must not be waited for before
  // dismiss(): as long as it is a zombie, its number is nobody else's.
  int line() const { return line_.get(); }
  void dismiss();

 private:
  Descriptor line_;
  pid_t pid_ = -1;
};

}  // namespace backplane::tool
