// SPDX-License-Identifier: Apache-2.0
//
// Gather and scatter by topology. Large blocks take the direct way between their rank and the root, so that they cross
// between units once. Small ones are gathered inside each unit, then up a tree of the units' first ranks.
#include <utility>

#include "schedule/binomial_tree.hpp"
#include "schedule/collectives.hpp"
#include "schedule/hierarchy.hpp"

namespace backplane::core {

namespace {

// Blocks in scratch memory by unit, in the order in which units follow the root's.
class UnitsFromRoot {
 public:
  UnitsFromRoot(const CollectiveSpec& spec, const Units& units)
      : units_(units), count_(spec.count), tree_(tree_spec(units)), ends_(units.size() + 1) {
    for (size_t i = 0; i < units.size(); ++i) ends_[i + 1] = ends_[i] + count_ * unit(i).size();
  }
  const BinomialTree& tree() const { return tree_; }
  int32_t leader(const Subtree& of) const { return unit(static_cast<size_t>(of.relative_rank)).front(); }
  int32_t parent() const { return units_.members[static_cast<size_t>(tree_.parent())].front(); }
  // The blocks of a subtree in the scratch memory of the first rank of this rank's unit.
  Region blocks(const Subtree& of) const {
    const auto first = static_cast<size_t>(of.relative_rank);
    const auto own = static_cast<size_t>(tree_.own().relative_rank);
    return scratch(ends_[first] - ends_[own], ends_[first + static_cast<size_t>(of.span)] - ends_[first]);
  }
  Region own_unit() const { return scratch(0, count_ * units_.own().size()); }
  uint64_t total() const { return ends_.back(); }
  // Copies all blocks at the root between scratch memory and `other`, where they are in the order of ranks.
  void copy(Builder& builder, BufferRole other, bool to_scratch) const {
    uint64_t at = 0;
    for (size_t i = 0; i < units_.size(); ++i) {
      for (const Region& run : runs_of(unit(i), Blocks::equal(count_), other)) {
        const Region here = scratch(at, run.count);
        builder.copy(to_scratch ? here : run, to_scratch ? run : here);
        at += run.count;
      }
    }
  }

 private:
  static CollectiveSpec tree_spec(const Units& units) {
    CollectiveSpec spec;
    spec.rank = static_cast<int32_t>(units.unit);
    spec.world_size = static_cast<int32_t>(units.size());
    spec.root = static_cast<int32_t>(units.root_unit);
    return spec;
  }
  const std::vector<int32_t>& unit(size_t relative) const {
    return units_.members[(units_.root_unit + relative) % units_.size()];
  }

  const Units& units_;
  uint64_t count_;
  BinomialTree tree_;
  std::vector<uint64_t> ends_;  // elements before each unit, and all
};

bool is_large(const CollectiveSpec& spec) { return spec.count * spec.element_size >= kLeastUnpacked; }

}  // namespace

Schedule hierarchical_gather(const CollectiveSpec& spec) {
  const auto units = outermost_units(spec, spec.root);
  if (!units || is_large(spec)) return linear_gather(flat(spec));
  const UnitsFromRoot order(spec, *units);
  Builder builder;
  append_flat(builder, spec, BP_GATHER, units->own(), 0, spec.count,
              {input(0, spec.count), order.own_unit(), order.total()}, false);
  if (units->place != 0) return std::move(builder).finish();
  for (const Subtree& child : order.tree().children()) {
    builder.recv(order.leader(child), order.blocks(child));
    builder.end_round();
  }
  if (order.tree().is_root()) {
    order.copy(builder, BufferRole::kOutput, false);
  } else {
    builder.send(order.parent(), order.blocks(order.tree().own()));
  }
  return std::move(builder).finish();
}

Schedule hierarchical_scatter(const CollectiveSpec& spec) {
  const auto units = outermost_units(spec, spec.root);
  if (!units || is_large(spec)) return linear_scatter(flat(spec));
  const UnitsFromRoot order(spec, *units);
  Builder builder;
  if (units->place == 0) {
    if (order.tree().is_root()) {
      order.copy(builder, BufferRole::kInput, true);
    } else {
      builder.recv(order.parent(), order.blocks(order.tree().own()));
    }
    builder.end_round();
    for (const Subtree& child : order.tree().children_largest_first()) {
      builder.send(order.leader(child), order.blocks(child));
      builder.end_round();
    }
  }
  append_flat(builder, spec, BP_SCATTER, units->own(), 0, spec.count,
              {order.own_unit(), output(0, spec.count), order.total()}, false);
  return std::move(builder).finish();
}

}  // namespace backplane::core
