// SPDX-License-Identifier: Apache-2.0
//
// Reference implementation of reductions, written for clarity rather than speed. The collectives' cases compare with
// it, and the harness's host offers it as "backplane.reduce/1".
#pragma once

#include <cstdint>

namespace backplane::conformance {

// Whether types.h permits this reduction of this dtype.
bool goes_together(uint32_t dtype, uint32_t reduce_op);

// out[i] = left[i] op right[i], as in ext/reduce.h. avg and premul_sum combine like sum.
int32_t combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right, uint64_t count);

// data[i] = data[i] / divisor, by the rules of avg. The divisor is not 0.
void divide(uint32_t dtype, void* data, uint64_t count, uint64_t divisor);

// data[i] = data[i] * factor[0].
void multiply(uint32_t dtype, void* data, uint64_t count, const void* factor);

// A whole reduction, as in ext/reduce.h.
void reduce(uint32_t dtype, uint32_t reduce_op, void* out, const void* const* inputs, const void* const* scalars,
            uint64_t inputs_count, uint64_t divisor, uint64_t count);

// Element i of data as a number; the real part of complex types.
double as_double(uint32_t dtype, const void* data, uint64_t i);
// Stores a number, rounded to the nearest element (integers: truncated, and wrapped if out of range); complex types get
// an imaginary part of 0.
void from_double(uint32_t dtype, void* data, uint64_t i, double value);

// The distance from 1 to the next larger element; 0 for integers and bool.
double epsilon(uint32_t dtype);

}  // namespace backplane::conformance
