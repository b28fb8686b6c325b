// SPDX-License-Identifier: Apache-2.0
#include "finalize.hpp"

#include <atomic>

namespace backplane::conformance {
namespace {

std::atomic<int> started = 0;
std::atomic<int> destroyed = 0;
std::atomic<bool> finalized = false;

}  // namespace

void agent_started() { ++started; }
void agent_destroyed() { ++destroyed; }

bool finalize(const bp_backend& backend) {
  if (!BP_HAS(&backend, finalize) || backend.finalize == nullptr) return false;
  if (started == 0 || started != destroyed || finalized.exchange(true)) return false;
  backend.finalize(&backend);
  return true;
}

}  // namespace backplane::conformance
