// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <stdexcept>

namespace backplane::bench {

inline int allowed_cores() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    throw std::runtime_error("cannot get this process's affinity");
  return CPU_COUNT(&allowed);
}

// Binds the calling thread, and threads that it starts later, to the index-th of its allowed cores.
inline void pin_thread(int index) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    throw std::runtime_error("cannot get this process's affinity");
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0) throw std::runtime_error("cannot pin a rank to its core");
    return;
  }
  throw std::runtime_error("there are fewer cores than ranks to pin");
}

}  // namespace backplane::bench
