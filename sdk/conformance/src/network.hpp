// SPDX-License-Identifier: Apache-2.0
//
// A private network for the processes of one case: a network namespace with only loopback, and a private /dev/shm. A
// case can capture all packets, take the network down, and count sockets and shared memory without interference.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "backplane/base/descriptor.hpp"

namespace backplane::conformance {

// Owns an idle process that keeps the namespaces alive. The process ends with this object or with its parent.
class NetworkHolder {
 public:
  // Blocks for some milliseconds. Without a value where the machine does not permit it; `why_not` then says why. The
  // caller becomes the parent of the process.
  static std::optional<NetworkHolder> make(std::string& why_not);

  NetworkHolder(NetworkHolder&& other) noexcept;
  NetworkHolder& operator=(NetworkHolder&& other) noexcept;
  ~NetworkHolder();

  pid_t pid() const { return pid_; }

  // Moves the calling thread, and the threads that it starts later, into the namespaces. Call it before there are other
  // threads. The working directory stays. False: failed, see errno.
  bool join() const;

 private:
  NetworkHolder(pid_t pid, base::Descriptor leash) : pid_(pid), leash_(std::move(leash)) {}
  void end();

  pid_t pid_ = -1;
  base::Descriptor leash_;  // the holder ends when the other end of this pipe is closed
  pid_t maker_ = -1;        // a forked copy of this object ends nothing
};

// Takes loopback of the caller's network namespace up or down. False: errno says why.
bool set_loopback(bool up);

}  // namespace backplane::conformance
