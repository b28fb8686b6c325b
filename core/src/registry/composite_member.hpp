// SPDX-License-Identifier: Apache-2.0
//
// The descriptor of a composite: what its parts have in common.
#pragma once

#include <string>

#include "registry/registry.hpp"

namespace backplane::core {

// Whether a backend can be part of a composite: it sends and receives host memory in process groups.
bool can_compose(const bp_backend& backend);

struct CompositeMember {
  // Throws core::Error if the backends cannot be composed.
  CompositeMember(const Member& inside, const Member& between);
  CompositeMember(const CompositeMember&) = delete;
  CompositeMember& operator=(const CompositeMember&) = delete;

  std::string summary;
  bp_backend backend = {};
  Member member;
};

}  // namespace backplane::core
