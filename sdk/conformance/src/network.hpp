// SPDX-License-Identifier: Apache-2.0
//
// A network of its own for the processes of one case: a network namespace with nothing in it but loopback, and a
// /dev/shm of its own. So that a case may listen to all packets, take the network down, and count sockets and shared
// memory without seeing those of others.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace backplane::conformance {

// Owns a process that does nothing but keep the namespaces; it ends with this object, or with its maker.
class NetworkHolder {
 public:
  // Blocks for some milliseconds. Without a value where the machine does not permit it; `why_not` then says why. The
  // caller becomes the parent of the process.
  static std::optional<NetworkHolder> make(std::string& why_not);

  NetworkHolder(NetworkHolder&& other) noexcept;
  NetworkHolder& operator=(NetworkHolder&& other) noexcept;
  ~NetworkHolder();

  pid_t pid() const { return pid_; }

  // Moves the calling thread in, and those that it starts from then on: before there are others. The working directory
  // stays. False: it could not, errno says why.
  bool join() const;

 private:
  NetworkHolder(pid_t pid, int leash) : pid_(pid), leash_(leash) {}
  void end();

  pid_t pid_ = -1;
  int leash_ = -1;    // the holder ends when nobody has the other end of this pipe any more
  pid_t maker_ = -1;  // a forked copy of this object ends nothing
};

// Takes loopback of the caller's network namespace up or down. False: errno says why.
bool set_loopback(bool up);

}  // namespace backplane::conformance
