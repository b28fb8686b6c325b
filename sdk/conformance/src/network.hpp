// SPDX-License-Identifier: Apache-2.0
//
// A private network for the processes of one case: a network namespace with only loopback, and a private /dev/shm. A
// case can capture all packets, take the network down, and count sockets and shared memory without interference.
#pragma once

#include <optional>
#include <string>

#include "backplane/base/subprocess.hpp"

namespace backplane::conformance {

// Owns an idle process that keeps the namespaces alive. The process ends with this object or with the thread that made
// it.
class NetworkHolder {
 public:
  // Blocks for some milliseconds. Without a value where the machine does not permit it; `why_not` then says why. The
  // caller becomes the parent of the process.
  static std::optional<NetworkHolder> make(std::string& why_not);

  // Moves the calling thread, and the threads that it starts later, into the namespaces. Call it before there are other
  // threads. The working directory stays. False: failed, see errno.
  bool join() const;

 private:
  base::Subprocess process_;
};

// Takes loopback of the caller's network namespace up or down. False: errno says why.
bool set_loopback(bool up);

}  // namespace backplane::conformance
