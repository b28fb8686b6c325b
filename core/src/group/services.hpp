// SPDX-License-Identifier: Apache-2.0
//
// Functions of a group's backends other than operations: matched probes, memory, extensions.
#pragma once

#include <memory>

#include "group/group.hpp"
#include "group/memory.hpp"

namespace backplane::core {

// Waits for a message that matches and takes the oldest one. It must be passed to a BP_RECV or to `drop`. Throws
// core::Error.
bp_message* probe(Group& group, int32_t peer, uint64_t tag, Deadline deadline, bp_result* result);
void drop(Group& group, bp_message* message);

// The extension `id` of the backend that serves this memory, NULL if it has none.
const void* backend_extension(Group& group, uint32_t memory, const char* id);

// Allocates memory of the backend that serves this kind, or ordinary host memory if it has none.
std::unique_ptr<Memory> allocate(Group& group, uint64_t bytes, uint32_t memory, int32_t device);
// Registers the program's memory with the backend that serves this kind, if it can.
std::unique_ptr<Memory> register_memory(Group& group, void* data, uint64_t bytes, uint32_t memory, int32_t device);

}  // namespace backplane::core
