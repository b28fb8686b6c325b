// SPDX-License-Identifier: Apache-2.0
//
// Membership of ranks that meet in a file. Each rank locks a byte of the file PATH.alive while its process lives; the
// kernel releases the lock of a process that ends. The store records the byte of each rank. A rank that leaves records
// that in the store before it releases its lock. A suspended process is not detected.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "liveness/key_value_space.hpp"
#include "liveness/membership.hpp"

namespace backplane::core {

// `store` is a handle on the file at `path`. Its interruption also ends this call.
std::unique_ptr<Membership> enroll_in_file(std::shared_ptr<KeyValueSpace> store, const std::string& path,
                                           const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                           Deadline deadline);

}  // namespace backplane::core
