// SPDX-License-Identifier: Apache-2.0
//
// Hashes of the parameters of a collective that must be equal on all ranks.
#pragma once

#include <cstdint>

#include "backplane/abi/op.h"

namespace backplane::base {

// A hash of numbers: FNV-1a by words, then MurmurHash3's finalizer, which spreads each bit over the result. Unequal
// numbers have equal digests with a probability of 2^-32, or 2^-n in n bits of it.
class OpDigest {
 public:
  void add(uint64_t number) { hash_ = (hash_ ^ number) * UINT64_C(0x100000001b3); }
  uint32_t value() const {
    uint64_t hash = hash_ ^ hash_ >> 33;
    hash *= UINT64_C(0xff51afd7ed558ccd);
    return static_cast<uint32_t>(hash >> 32);
  }

 private:
  uint64_t hash_ = UINT64_C(0xcbf29ce484222325);
};

// Of kind, dtype, reduction and root. In a message's tag it keeps ranks with different operations from receiving each
// other's data. Different counts show in the sizes of messages.
inline OpDigest digest_of(const bp_op& op) {
  OpDigest digest;
  digest.add(op.kind);
  if (op.kind == BP_BARRIER) return digest;
  digest.add(op.dtype);
  digest.add(op.reduce_op);
  digest.add(static_cast<uint64_t>(op.root));
  return digest;
}

// The same with the count, or the counts that all ranks pass. `op` is normalised by the core.
inline OpDigest digest_with_counts(const bp_op& op, int32_t world_size) {
  OpDigest digest = digest_of(op);
  const auto ranks = static_cast<uint64_t>(world_size);
  switch (op.kind) {
    case BP_ALL_GATHERV:
    case BP_REDUCE_SCATTERV: {
      const uint64_t* const counts = op.kind == BP_ALL_GATHERV ? op.out_counts : op.in_counts;
      for (uint64_t rank = 0; rank < ranks; ++rank) digest.add(counts[rank]);
      break;
    }
    case BP_BARRIER:
    case BP_GATHERV:
    case BP_SCATTERV:
    case BP_ALL_TO_ALLV:
      break;
    case BP_BROADCAST:
    case BP_SCATTER:
    case BP_REDUCE_SCATTER:  // the count N of the table in op.h is that of the output
      digest.add(op.output.count);
      break;
    case BP_ALL_TO_ALL:
      digest.add(op.input.count / ranks);
      break;
    default:
      digest.add(op.input.count);
  }
  return digest;
}

}  // namespace backplane::base
