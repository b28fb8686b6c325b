// SPDX-License-Identifier: Apache-2.0
#include "schedule/binomial_tree.hpp"

#include <algorithm>

namespace backplane::core {

namespace {

int32_t lowest_bit(int32_t relative_rank) { return relative_rank & -relative_rank; }

}  // namespace

BinomialTree::BinomialTree(const CollectiveSpec& spec) : world_size_(spec.world_size), root_(spec.root) {
  own_ = subtree((spec.rank - root_ + world_size_) % world_size_);
  for (int64_t distance = 1; distance < own_.span; distance *= 2)
    children_.push_back(subtree(own_.relative_rank + static_cast<int32_t>(distance)));
}

int32_t BinomialTree::parent() const { return subtree(own_.relative_rank - lowest_bit(own_.relative_rank)).rank; }

Subtree BinomialTree::subtree(int32_t relative_rank) const {
  const int32_t left = world_size_ - relative_rank;
  const auto rank = static_cast<int32_t>((int64_t{root_} + relative_rank) % world_size_);
  return {rank, relative_rank, relative_rank == 0 ? left : std::min(lowest_bit(relative_rank), left)};
}

}  // namespace backplane::core
