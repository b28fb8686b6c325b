// SPDX-License-Identifier: Apache-2.0
//
// How ranks that meet in a file watch over each other. Each locks a byte of its own in the file PATH.alive for as long
// as its process lives: the kernel gives up the lock of a process that dies, however it dies. Which byte is whose
// stands in the store. A rank that departs says so in the store before it gives up its lock. Who only stops is not
// noticed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "liveness/key_value_space.hpp"
#include "liveness/membership.hpp"

namespace backplane::core {

// `store` is a handle of the file at `path` whose interruption ends this call, too.
std::unique_ptr<Membership> enroll_in_file(std::shared_ptr<KeyValueSpace> store, const std::string& path,
                                           const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                           Deadline deadline);

}  // namespace backplane::core
