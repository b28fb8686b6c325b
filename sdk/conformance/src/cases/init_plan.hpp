// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>

#include "../agent.hpp"

namespace backplane::conformance::init {

// The usual plan except for the space, the values of some options, and the timeout of init.
inline Plan plan_in(std::string space, std::map<std::string, std::string> options = {},
                    std::optional<Nanoseconds> timeout = {}) {
  Plan plan;
  plan.space = std::move(space);
  plan.options = std::move(options);
  plan.timeout = timeout;
  return plan;
}

}  // namespace backplane::conformance::init
