// SPDX-License-Identifier: Apache-2.0
//
// What the kernel says about this process and others of its host.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "topology.hpp"

namespace backplane::shm {

std::string boot_id();         // of the running kernel; empty if it cannot be told
uint64_t pid_namespace();      // inode; 0 if it cannot be told, or is not the one that /proc shows
uint64_t born(pid_t process);  // start time in ticks since boot; 0 if it cannot be told
Processors usable_cpus();

// False only if it is certain that the process which had this id and start time does not run any more.
bool is_alive(pid_t process, uint64_t born);

}  // namespace backplane::shm
