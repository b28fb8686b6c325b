// SPDX-License-Identifier: Apache-2.0
#include "schedule/cost.hpp"

#include <bit>

namespace backplane::core {

namespace {

// W of the formulas, and terms in W.
struct Size {
  explicit Size(int32_t world_size)
      : all(world_size),
        others(world_size - 1),
        rounds(std::bit_width(static_cast<uint32_t>(world_size) - 1)),
        // A fold adds two rounds to those of the largest power of two below W.
        folded_rounds(std::has_single_bit(static_cast<uint32_t>(world_size)) ? rounds : rounds + 1) {}

  double all;
  double others;
  double rounds;  // ceil(log2 W)
  double folded_rounds;
};

// The sources of the formulas are named at the schedules (see collectives.hpp).
Cost rooted(Algorithm algorithm, uint32_t kind, const Size& size, double bytes) {
  const double both_halves = 2 * bytes * size.others / size.all;
  switch (kind) {
    case BP_BROADCAST:
      if (algorithm == Algorithm::kRing) return {size.rounds + size.others, both_halves, 0};
      return {size.rounds, size.rounds * bytes, 0};
    case BP_REDUCE:
      if (algorithm == Algorithm::kRing) return {2 * size.others, both_halves, 0};
      return {size.rounds, size.rounds * bytes, 0};
    default:  // gather, scatter: a tree forwards up to half of the blocks through scratch
      if (algorithm == Algorithm::kLinear) return {size.others, size.others * bytes, 0};
      return {size.rounds, size.others * bytes, bytes * size.all / 2};
  }
}

Cost unrooted(Algorithm algorithm, uint32_t kind, const Size& size, double bytes) {
  switch (kind) {
    case BP_BARRIER:
      return {size.rounds, 0, 0};
    case BP_ALL_REDUCE:
      // A ring reduces each byte once, recursive doubling in every round.
      if (algorithm == Algorithm::kRing) return {2 * size.others, 2 * bytes * size.others / size.all, 0};
      return {size.folded_rounds, size.folded_rounds * bytes, (size.folded_rounds - size.others / size.all) * bytes};
    case BP_ALL_GATHER:
      if (algorithm == Algorithm::kBruck) return {size.rounds, size.others * bytes, size.all * bytes};
      return {size.others, size.others * bytes, 0};
    case BP_ALL_TO_ALL:
      // Bruck rotates all blocks twice, and packs and unpacks half of them in every round.
      if (algorithm == Algorithm::kBruck)
        return {size.rounds, size.rounds * bytes * size.all / 2, (size.rounds + 1) * bytes * size.all};
      return {size.others, size.others * bytes, 0};
    case BP_SCAN:
    case BP_EXSCAN:
      return {size.rounds, size.rounds * bytes, 0};
    default:  // reduce_scatter
      return {size.others, size.others * bytes, 0};
  }
}

// The bytes that a link carries in the time that one message needs to start: 10 us at 1.6 GB/s, TCP on loopback or a
// 10 to 25 Gbit/s network. Shared memory carries fewer, but the choice depends only weakly on this number.
constexpr double kStartupBytes = 16384;
// Memory copies about four times as fast as such a link.
constexpr double kCopyWeight = 0.25;

bool varying(uint32_t kind) {
  return kind == BP_GATHERV || kind == BP_SCATTERV || kind == BP_ALL_GATHERV || kind == BP_REDUCE_SCATTERV ||
         kind == BP_ALL_TO_ALLV;
}

double time_of(const Cost& cost) { return cost.messages * kStartupBytes + cost.bytes + cost.copied * kCopyWeight; }

}  // namespace

Cost cost_of(Algorithm algorithm, const CollectiveSpec& spec) {
  const Size size(spec.world_size);
  const double bytes = static_cast<double>(spec.count) * static_cast<double>(spec.element_size);
  switch (spec.kind) {
    case BP_BROADCAST:
    case BP_REDUCE:
    case BP_GATHER:
    case BP_SCATTER:
      return rooted(algorithm, spec.kind, size, bytes);
    default:
      return unrooted(algorithm, spec.kind, size, bytes);
  }
}

Algorithm choose_algorithm(const CollectiveSpec& spec) {
  if (spec.topology != nullptr && has_hierarchical(spec.kind)) return Algorithm::kHierarchical;
  const std::vector<Algorithm> algorithms = algorithms_for(spec.kind);
  Algorithm best = algorithms.at(0);
  if (varying(spec.kind)) return best;
  for (const Algorithm algorithm : algorithms)
    if (time_of(cost_of(algorithm, spec)) < time_of(cost_of(best, spec))) best = algorithm;
  return best;
}

}  // namespace backplane::core
