// SPDX-License-Identifier: Apache-2.0
//
// Finalizes the library below a backend, as the core does when a process ends (bp_backend.finalize).
#pragma once

#include "backplane/abi/abi.h"

namespace backplane::conformance {

// Each agent of this process that started, and each of them that was destroyed.
void agent_started();
void agent_destroyed();

// Calls finalize, once, if the backend has one, an agent has started and all are destroyed. False: not called.
bool finalize(const bp_backend& backend);

}  // namespace backplane::conformance
