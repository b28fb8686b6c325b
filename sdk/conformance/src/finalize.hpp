// SPDX-License-Identifier: Apache-2.0
//
// Finalizes the library below a backend, as the core does when a process ends (bp_backend.finalize).
#pragma once

#include "backplane/abi/abi.h"

namespace backplane::conformance {

// Call for each agent of this process that has started, and for each of them that is destroyed.
void agent_started();
void agent_destroyed();

// Calls the backend's finalize once, if it has one, an agent has started and all are destroyed. False: not called.
bool finalize(const bp_backend& backend);

}  // namespace backplane::conformance
