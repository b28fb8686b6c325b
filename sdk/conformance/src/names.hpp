// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace backplane::conformance {

// "all_reduce", "f32", "sum", "host"; "?" for a value that does not exist.
const char* op_name(uint32_t op);
const char* dtype_name(uint32_t dtype);
const char* reduce_op_name(uint32_t reduce_op);
const char* memory_name(uint32_t memory);

}  // namespace backplane::conformance
