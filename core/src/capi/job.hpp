// SPDX-License-Identifier: Apache-2.0
//
// Creates groups from the configurations of the C API.
#pragma once

#include <memory>
#include <string>

#include "backplane/backplane.h"
#include "group/group.hpp"

namespace backplane::core {

// Forms a job's first group: rendezvous, choice of backends, start.
std::shared_ptr<Group> create_group(const bp_group_config& config);

// See bp_init_backend.
std::shared_ptr<Group> init_backend(const Member& member, bp_store* store, const char* name, int32_t rank,
                                    int32_t world_size, const std::shared_ptr<const BackendOptions>& options,
                                    int64_t timeout_ns);

// See bp_group_join.
std::shared_ptr<Group> join_group(const bp_group_config& config, int64_t timeout_ns);

// See bp_group_with_backend.
std::shared_ptr<Group> group_with_backend(Group& parent, const char* backend, int64_t timeout_ns);

// See bp_store_trace.
std::string trace_job(bp_store& store, const char* group, int64_t timeout_ns);

}  // namespace backplane::core
