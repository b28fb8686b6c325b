// SPDX-License-Identifier: Apache-2.0
//
// A native collective: the arguments of submit, copied where necessary, and the messages that it waits for.
#pragma once

#include <memory>
#include <vector>

#include "operation.hpp"

namespace backplane::specimen {

struct Collective final : Task {
  Collective(const bp_op& given, int32_t world_size) : owned(given, world_size) {}

  sdk::OwnedOp owned;
  bp_op& op = owned.get();

  // Guarded by the group's lock.
  std::vector<OperationPtr> posted;
  std::optional<sdk::Failure> given_up;
};
using CollectivePtr = std::shared_ptr<Collective>;

// "all_reduce"
const char* operation_name(uint32_t kind);

// data[i] = data[i] / divisor: floats rounded to nearest even, integers toward zero. Complex: both parts.
void divide(uint32_t dtype, void* data, uint64_t count, int32_t divisor);

}  // namespace backplane::specimen
