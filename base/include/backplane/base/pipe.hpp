// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include "descriptor.hpp"

namespace backplane::base {

// Both ends are close-on-exec.
struct Pipe {
  // `flags` of pipe2, besides O_CLOEXEC. On failure both descriptors are empty and errno is set.
  static Pipe open(int flags = 0) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC | flags) != 0) return {};
    return {Descriptor(ends[0]), Descriptor(ends[1])};
  }
  explicit operator bool() const { return static_cast<bool>(read); }

  Descriptor read;
  Descriptor write;
};

}  // namespace backplane::base
