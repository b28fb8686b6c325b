// SPDX-License-Identifier: Apache-2.0
#include "member.hpp"

namespace backplane::conformance {

const bp_capability* Member::capability(uint32_t op) const {
  for (uint32_t i = 0; i < backend().capability_count; ++i) {
    if (backend().capabilities[i]->op == op) return backend().capabilities[i];
  }
  return nullptr;
}

}  // namespace backplane::conformance
