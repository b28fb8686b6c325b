// SPDX-License-Identifier: Apache-2.0
//
// The port at which torch.distributed serves its store on node 0.
#pragma once

#include "run/rank_environment.hpp"

namespace backplane::tool {

// A free port, or, if there are several nodes, which must agree, the port after that of the job's store.
uint16_t choose_torch_port(const Job& job);

}  // namespace backplane::tool
