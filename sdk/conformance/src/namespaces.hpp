// SPDX-License-Identifier: Apache-2.0
//
// Namespaces for the processes of one case. A private /dev/shm: shared memory of other programs is not taken for that
// of the backend. A private network with only loopback: a case can capture all packets, take the network down, and
// count sockets.
#pragma once

#include <optional>
#include <string>

#include "backplane/base/subprocess.hpp"

namespace backplane::conformance {

// Owns an idle process that keeps the namespaces alive. The process ends with this object or with the thread that made
// it.
class Namespaces {
 public:
  // Blocks for some milliseconds. Without a value where the machine does not permit it; `why_not` then says why. The
  // caller becomes the parent of the process.
  static std::optional<Namespaces> with_network(std::string& why_not) { return make(true, why_not); }
  // The same, with the caller's network. Only for privileged users.
  static std::optional<Namespaces> with_shared_memory(std::string& why_not) { return make(false, why_not); }

  // Moves the calling thread, and the threads that it starts later, into the namespaces. Call it before there are other
  // threads. The working directory stays. False: failed, see errno.
  bool join() const;

 private:
  static std::optional<Namespaces> make(bool network, std::string& why_not);

  base::Subprocess process_;
};

// Takes loopback of the caller's network namespace up or down. False: errno says why.
bool set_loopback(bool up);

}  // namespace backplane::conformance
