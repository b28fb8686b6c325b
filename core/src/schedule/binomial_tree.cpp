// SPDX-License-Identifier: Apache-2.0
#include "schedule/binomial_tree.hpp"

#include <algorithm>

namespace backplane::core {

namespace {

int32_t lowest_bit(int32_t place) { return place & -place; }

}  // namespace

BinomialTree::BinomialTree(const Problem& problem) : world_size_(problem.world_size), root_(problem.root) {
  own_ = subtree((problem.rank - root_ + world_size_) % world_size_);
  for (int64_t distance = 1; distance < own_.span; distance *= 2)
    children_.push_back(subtree(own_.place + static_cast<int32_t>(distance)));
}

int32_t BinomialTree::parent() const { return subtree(own_.place - lowest_bit(own_.place)).rank; }

Subtree BinomialTree::subtree(int32_t place) const {
  const int32_t left = world_size_ - place;
  const auto rank = static_cast<int32_t>((int64_t{root_} + place) % world_size_);
  return {rank, place, place == 0 ? left : std::min(lowest_bit(place), left)};
}

}  // namespace backplane::core
