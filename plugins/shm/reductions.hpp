// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of reductions, by the core's extension.
#pragma once

#include "backplane/sdk/host.hpp"

namespace backplane::shm {

class Reductions {
 public:
  explicit Reductions(const sdk::Host& host);

  // Are there divide and multiply? Cores that are older than them complete avg and premul_sum themselves.
  bool scale() const { return BP_HAS(table_, multiply); }

  // Dtype and operation were validated by the core.
  //
  // out = left op right, element by element; out may be either.
  void combine(uint32_t dtype, uint32_t reduce_op, std::byte* out, const std::byte* left, const std::byte* right,
               uint64_t count) const {
    table_->combine(dtype, reduce_op, out, left, right, count);
  }
  // avg, of a sum: data /= divisor.
  void divide(uint32_t dtype, std::byte* data, uint64_t divisor, uint64_t count) const {
    table_->divide(dtype, data, divisor, count);
  }
  // premul_sum, of an input: out = in * *scalar; out may be in.
  void multiply(uint32_t dtype, std::byte* out, const std::byte* in, const std::byte* scalar, uint64_t count) const {
    table_->multiply(dtype, out, in, scalar, count);
  }

 private:
  const bp_reduce_api* table_;
};

}  // namespace backplane::shm
