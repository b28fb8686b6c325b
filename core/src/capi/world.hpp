// SPDX-License-Identifier: Apache-2.0
//
// From a configuration to a group, and the group that is the process's default.
#pragma once

#include <memory>

#include "backplane/backplane.h"
#include "group/group.hpp"

namespace backplane::core {

// A group of its own: rendezvous, choice of backends, start.
std::shared_ptr<Group> create_group(const bp_group_config& config);

// The same as the default of the process; BP_INVALID if there is one. A backend with BP_BACKEND_LOCAL makes a group
// that is not, for a caller who wants a handle.
std::shared_ptr<Group> init_default(const bp_group_config& config, bool wants_handle);
std::shared_ptr<Group> default_group();  // NULL if there is none
void destroy_default();
// Destroys a group; if it is the default one, there is none afterwards.
void end_group(const std::shared_ptr<Group>& group);

// The init handler's way: one backend, a given store.
std::shared_ptr<Group> init_backend(const Member& member, bp_store* store, const char* name, int32_t rank,
                                    int32_t world_size, const std::shared_ptr<const BackendOptions>& options,
                                    int64_t timeout_ns);

// The same ranks over another backend.
std::shared_ptr<Group> group_with_backend(Group& parent, const char* backend, int64_t timeout_ns);

// What bp_store_trace says.
std::string trace_job(bp_store& store, const char* group, int64_t timeout_ns);

}  // namespace backplane::core
