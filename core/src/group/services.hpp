// SPDX-License-Identifier: Apache-2.0
//
// What a group offers of its backends beside operations: matched probes, memory, extensions.
#pragma once

#include <memory>

#include "group/group.hpp"
#include "group/memory.hpp"

namespace backplane::core {

// Takes the oldest message of this rank that matches, by the deadline. The result belongs to a BP_RECV or to drop.
// Throws core::Error.
bp_message* probe(Group& group, int32_t peer, uint64_t tag, Deadline deadline, bp_result* result);
void drop(Group& group, bp_message* message);

// An extension of the backend that serves this memory, NULL if it has none.
const void* backend_extension(Group& group, uint32_t memory, const char* id);

// Memory for operations on buffers of this kind: the backend's, or ordinary host memory if it has none to give.
std::unique_ptr<Memory> allocate(Group& group, uint64_t bytes, uint32_t memory, int32_t device);
// The program's memory, registered for operations if the backend does so.
std::unique_ptr<Memory> register_memory(Group& group, void* data, uint64_t bytes, uint32_t memory, int32_t device);

}  // namespace backplane::core
