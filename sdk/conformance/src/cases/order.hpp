// SPDX-License-Identifier: Apache-2.0
//
// The step that the cases of group order share.
#pragma once

#include <memory>
#include <vector>

#include "../case.hpp"
#include "collectives_call.hpp"

namespace backplane::conformance {

// Step `number` of all ranks: one of the native collectives in turn, or, if there is none, a message around a ring.
// Owns the buffers of its operations, so it must outlive them. Not movable.
class Step {
 public:
  Step(Collectives& group, const std::vector<uint32_t>& ops, uint64_t number, uint64_t count = 60);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void submit();
  // Waits up to `timeout`. True once it has ended. Leaves the body if it failed.
  bool poll(Nanoseconds timeout);
  // Waits and checks the results.
  void finish();

 private:
  void check();

  Collectives& group_;
  Shape shape_;
  std::unique_ptr<Call> call_;  // null: a ring
  Guarded output_;
  Guarded input_;
  std::vector<Pending> pending_;
  uint64_t number_;
};

// The native collectives for host memory; empty if there are none.
std::vector<uint32_t> collectives_or_none(Collectives& group);

}  // namespace backplane::conformance
