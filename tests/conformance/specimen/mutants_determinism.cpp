// SPDX-License-Identifier: Apache-2.0
#include "specimen.hpp"

namespace backplane::specimen {
namespace {

// Changes the last bit of a sum of f32: too little for it to be wrong.
void change_last_bit(const bp_op& op) {
  if (op.kind != BP_ALL_REDUCE || op.dtype != BP_F32 || op.reduce_op != BP_SUM || op.output.count == 0) return;
  static_cast<std::byte*>(op.output.data)[0] ^= std::byte{1};
}

struct DiffersBetweenRanks : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    if (rank() == 1) change_last_bit(collective.op);
  }
};

struct DiffersEachTime : Specimen {
  void run_collective(Collective& collective) override {
    Specimen::run_collective(collective);
    if (++done_ % 3 == 0) change_last_bit(collective.op);
  }
  int done_ = 0;
};

}  // namespace

std::vector<Mutant> determinism_mutants() {
  return {
      {"determinism.equal-across-ranks", "rank 1 has another last bit", made<DiffersBetweenRanks>},
      {"determinism.equal-on-repeat", "every third sum has another last bit", made<DiffersEachTime>},
  };
}

}  // namespace backplane::specimen
