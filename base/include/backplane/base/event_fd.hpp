// SPDX-License-Identifier: Apache-2.0
//
// Linux only.
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>

#include "descriptor.hpp"

namespace backplane::base {

// A flag that poll can wait for: an eventfd, close-on-exec, non-blocking. Thread-safe.
class EventFd {
 public:
  // Throws std::system_error.
  EventFd() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!fd_) throw std::system_error(errno, std::system_category(), "cannot open an eventfd");
  }

  // For poll: POLLIN while it is raised.
  int get() const { return fd_.get(); }
  void raise() const { eventfd_write(get(), 1); }  // fails only if it is raised already
  void clear() const {
    eventfd_t count = 0;
    eventfd_read(get(), &count);
  }

 private:
  Descriptor fd_;
};

}  // namespace backplane::base
