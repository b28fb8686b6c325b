// SPDX-License-Identifier: Apache-2.0
//
// Information of the kernel about processes of this host.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "backplane/base/host.hpp"
#include "topology.hpp"

namespace backplane::shm {

using base::boot_id;

uint64_t pid_namespace();               // inode; 0 if unknown, or if /proc shows another one
uint64_t start_time_of(pid_t process);  // in ticks since boot; 0 if unknown
Processors usable_cpus();

// Returns false only if the process with this id and start time has certainly ended.
bool is_alive(pid_t process, uint64_t start_time);

}  // namespace backplane::shm
