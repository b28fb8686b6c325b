// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of reductions, by the core's host extension.
#pragma once

#include <span>

#include "backplane/sdk/host.hpp"

namespace backplane::shm {

class Reductions {
 public:
  explicit Reductions(const sdk::Host& host);

  // Dtype and operation must have been validated by the core.
  //
  // out = left op right, element by element. `out` may be either operand.
  void combine(uint32_t dtype, uint32_t reduce_op, std::byte* out, const std::byte* left, const std::byte* right,
               uint64_t count) const {
    table_->combine(dtype, reduce_op, out, left, right, count);
  }
  // out = inputs[0] op inputs[1] op ...; an average is divided by the number of inputs. `scalars`: empty, or per input
  // null or a factor. `out` may be any input.
  void reduce(uint32_t dtype, uint32_t reduce_op, void* out, std::span<const void* const> inputs,
              std::span<const void* const> scalars, uint64_t count) const {
    table_->reduce(dtype, reduce_op, out, inputs.data(), scalars.empty() ? nullptr : scalars.data(), inputs.size(),
                   inputs.size(), count);
  }

 private:
  const bp_reduce_api* table_;
};

}  // namespace backplane::shm
