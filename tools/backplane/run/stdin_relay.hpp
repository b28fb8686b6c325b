// SPDX-License-Identifier: Apache-2.0
//
// Standard input of rank 0. Rank 0 inherits a file or pipe. It cannot inherit a terminal: ranks are in background
// process groups, which the kernel stops when they read from it. The launcher reads from the terminal and forwards the
// bytes.
#pragma once

#include <poll.h>

#include <string>

#include "backplane/base/pipe.hpp"

namespace backplane::tool {

class StdinRelay {
 public:
  StdinRelay();

  // The descriptor for rank 0.
  int for_rank() const { return pipe_.read ? pipe_.read.get() : 0; }
  // Call it when rank 0 has inherited the descriptor.
  void handed_over() { pipe_.read.reset(); }

  // interest: the event to poll for; fd is -1 for none. serve: handles it.
  pollfd interest() const;
  void serve();

 private:
  base::Pipe pipe_;
  std::string pending_;
};

}  // namespace backplane::tool
