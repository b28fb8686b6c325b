// SPDX-License-Identifier: Apache-2.0
//
// For mutants whose bug stands around the init of the specimen.
#pragma once

#include "specimen.hpp"

namespace backplane::specimen {

using InitFunction = decltype(bp_backend::init);

// The init that the descriptor had before `starting` replaced it.
inline InitFunction& plain_init_function() {
  static InitFunction function = nullptr;
  return function;
}
inline int32_t plain_init(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  return plain_init_function()(self, init, agent, err);
}

// For Mutant::patch_backend: init is replaced by Init, which may call plain_init.
template <auto Init>
void starting(bp_backend& backend) {
  plain_init_function() = backend.init;
  backend.init = Init;
}

}  // namespace backplane::specimen
