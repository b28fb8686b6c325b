// SPDX-License-Identifier: Apache-2.0
//
// Finds TCP connections that a listener of this process has accepted and that have brought no byte: a worker sends as
// soon as it is connected. TensorPipe does not report accepted connections, so this looks at the process's descriptors.
// It changes nothing.
#pragma once

#include <dirent.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace backplane::tensorpipe {

class ConnectionLimiter {
 public:
  struct Limits {
    size_t most;                         // idle connections
    std::chrono::milliseconds idle;      // younger connections are not idle yet
    std::chrono::milliseconds lifetime;  // of an idle connection
  };

  // Opens what it needs to work when descriptors are exhausted. Without /proc it finds nothing.
  ConnectionLimiter();
  explicit ConnectionLimiter(const Limits& limits);

  // Whether the listener at `url`, such as "uv://10.0.0.1:1234", has too many idle connections, or one that is too old.
  // Costs a system call per descriptor.
  bool is_exceeded(const std::string& url) const;

 private:
  const Limits limits_;
  const std::unique_ptr<DIR, int (*)(DIR*)> descriptors_;
};

}  // namespace backplane::tensorpipe
