// SPDX-License-Identifier: Apache-2.0
//
// The plugin's backend, loaded from its file, and the time limit of waits.
#pragma once

#include "rpc/test_agent.hpp"
#include "store/store.hpp"
#include "support/agents.hpp"

namespace backplane::test {

inline const bp_backend& agent() { return open_backend(TENSORPIPE_PLUGIN, "tensorpipe"); }
inline core::Deadline soon() { return core::Deadline::after(INT64_C(20'000'000'000)); }

}  // namespace backplane::test
