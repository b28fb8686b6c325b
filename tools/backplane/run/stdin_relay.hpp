// SPDX-License-Identifier: Apache-2.0
//
// Standard input for rank 0. A file or pipe is inherited. A terminal cannot be: ranks are in background process groups,
// which the kernel stops when they read from it; so the launcher reads and passes on.
#pragma once

#include <poll.h>

#include <string>

#include "common/process.hpp"

namespace backplane::tool {

class StdinRelay {
 public:
  StdinRelay();

  // What rank 0 is to have as its standard input.
  int for_rank() const { return pipe_.read ? pipe_.read.get() : 0; }
  // Once rank 0 has it.
  void handed_over() { pipe_.read.reset(); }

  // What to wait for, fd -1 if nothing; then what to do when it has happened.
  pollfd interest() const;
  void serve();

 private:
  Pipe pipe_;
  std::string pending_;
};

}  // namespace backplane::tool
