// SPDX-License-Identifier: Apache-2.0
//
// What the environment says about this process's place in its job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "store/store.hpp"

namespace backplane::core {

// A set and not empty variable.
std::optional<std::string> variable(const char* name);
// "1", "true", "yes" or "on" in any case.
bool variable_is_true(const char* name);

// A whole decimal number from `least` to `most`, or BP_INVALID, which names `what` ("RANK"), the text and the range.
int64_t parse_number(const std::string& what, const std::string& text, int64_t least, int64_t most);
uint16_t parse_port(const std::string& what, const std::string& text);

// From RANK, else from what Open MPI, MPICH or Slurm export.
std::optional<int32_t> environment_rank();
std::optional<int32_t> environment_world_size();

// BACKPLANE_HEARTBEAT_INTERVAL and BACKPLANE_HEARTBEAT_LIMIT ("500ms", "10s", "2m"; a number alone is seconds), each
// with its default if it is not set. BP_INVALID names the variable, its text and what is allowed.
Heartbeat environment_heartbeat();

}  // namespace backplane::core
