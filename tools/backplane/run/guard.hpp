// SPDX-License-Identifier: Apache-2.0
//
// A small process that kills a job's process groups when the launcher is killed. The kernel's parent-death signal ends
// the ranks; the guard ends the processes that the ranks have started.
#pragma once

#include "backplane/base/subprocess.hpp"

namespace backplane::tool {

class Guard {
 public:
  // Forks; call it while the process has one thread.
  Guard();

  // The write end of the pipe. A child writes its process group here. The launcher does not, because it may be killed
  // between fork and write. Do not reap a child before dismiss(): a zombie keeps its number from being reused.
  int line() const { return line_.get(); }
  // Ends the guard without killing anything.
  void dismiss() { process_ = {}; }

 private:
  base::Subprocess process_;
  base::Descriptor line_;
};

}  // namespace backplane::tool
