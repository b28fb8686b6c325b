// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of reductions, by the core's extension.
#pragma once

#include "backplane/sdk/host.hpp"

namespace backplane::shm {

class Reductions {
 public:
  explicit Reductions(const sdk::Host& host);

  // out = left op right, element by element; out may be either. Dtype and operation were validated by the core.
  void combine(uint32_t dtype, uint32_t reduce_op, std::byte* out, const std::byte* left, const std::byte* right,
               uint64_t count) const {
    table_->combine(dtype, reduce_op, out, left, right, count);
  }

 private:
  const bp_reduce_api* table_;
};

}  // namespace backplane::shm
