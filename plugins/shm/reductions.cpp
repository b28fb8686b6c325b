// SPDX-License-Identifier: Apache-2.0
#include "reductions.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace backplane::shm {

Reductions::Reductions(const sdk::Host& host)
    : table_(static_cast<const bp_reduce_api*>(host.get()->extension(host.get()->ctx, BP_EXT_REDUCE))) {
  if (table_ == nullptr) {
    throw sdk::Failure(BP_UNSUPPORTED, "shm needs a core that offers reductions (" BP_EXT_REDUCE "); update Backplane");
  }
}

// Of two inputs or more.
void Reductions::reduce_pairs(uint32_t dtype, uint32_t reduce_op, void* out, std::span<const void* const> inputs,
                              uint64_t count) const {
  // In place, that input would be overwritten before its turn.
  const bool in_place = std::find(inputs.begin() + 2, inputs.end(), out) != inputs.end();
  std::vector<std::byte> aside(in_place ? count * bp_dtype_size(dtype) : 0);
  void* const to = in_place ? aside.data() : out;
  table_->combine(dtype, reduce_op, to, inputs[0], inputs[1], count);
  for (const void* const input : inputs.subspan(2)) table_->combine(dtype, reduce_op, to, to, input, count);
  if (in_place) std::memcpy(out, to, aside.size());
}

}  // namespace backplane::shm
