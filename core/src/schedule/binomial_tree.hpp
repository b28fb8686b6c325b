// SPDX-License-Identifier: Apache-2.0
//
// The binomial tree over the ranks of a group, rooted at CollectiveSpec::root.
//
// Terms. The *relative rank* of a rank is (rank - root) mod W, so that the root has relative rank 0. The *subtree* of
// relative rank v consists of the relative ranks [v, v + span). The children of v are v + 1, v + 2, v + 4, ..., limited
// by the lowest bit set in v and by W. (Thakur, Rabenseifner, Gropp 2005, section 3.)
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.hpp"

namespace backplane::core {

struct Subtree {
  int32_t rank = 0;           // of its root
  int32_t relative_rank = 0;  // of its root, the lowest of the subtree
  int32_t span = 1;           // number of ranks
};

class BinomialTree {
 public:
  explicit BinomialTree(const CollectiveSpec& spec);

  const Subtree& own() const { return own_; }
  bool is_root() const { return own_.relative_rank == 0; }
  // Not for the root.
  int32_t parent() const;
  // Smallest span first. A child of span 2^k is ready to send up after k rounds.
  const std::vector<Subtree>& children() const { return children_; }
  // For messages from the root: the largest subtree needs the most further rounds.
  std::vector<Subtree> children_largest_first() const { return {children_.rbegin(), children_.rend()}; }
  Subtree subtree(int32_t relative_rank) const;

 private:
  int32_t world_size_;
  int32_t root_;
  Subtree own_;
  std::vector<Subtree> children_;
};

}  // namespace backplane::core
