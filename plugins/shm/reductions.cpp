// SPDX-License-Identifier: Apache-2.0
#include "reductions.hpp"

namespace backplane::shm {

Reductions::Reductions(const sdk::Host& host)
    : table_(static_cast<const bp_reduce_api*>(host.get()->extension(host.get()->ctx, BP_EXT_REDUCE))) {
  if (table_ == nullptr) {
    throw sdk::Failure(BP_UNSUPPORTED, "shm requires a core with reductions (" BP_EXT_REDUCE "); update Backplane");
  }
}

}  // namespace backplane::shm
