// SPDX-License-Identifier: Apache-2.0
//
// The binomial tree over the ranks of a group, rooted at Problem::root.
//
// Words. A rank's *place* is its distance from the root going up: (rank - root) mod W, so the root has place 0. The
// *subtree* of place v is the run of places [v, v + span); its children are v + 1, v + 2, v + 4, ... as far as the
// lowest bit set in v and W allow. (Thakur, Rabenseifner, Gropp 2005, section 3.)
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.hpp"

namespace backplane::core {

struct Subtree {
  int32_t rank = 0;   // of its top
  int32_t place = 0;  // of its top, and so the first place of the run
  int32_t span = 1;   // places in it
};

class BinomialTree {
 public:
  explicit BinomialTree(const Problem& problem);

  const Subtree& own() const { return own_; }
  bool is_root() const { return own_.place == 0; }
  // Not for the root.
  int32_t parent() const;
  // Smallest span first. A child of span 2^k is ready to send up after k rounds.
  const std::vector<Subtree>& children() const { return children_; }
  // On the way down the largest goes first, as it has the most rounds still to come.
  std::vector<Subtree> children_largest_first() const { return {children_.rbegin(), children_.rend()}; }
  Subtree subtree(int32_t place) const;

 private:
  int32_t world_size_;
  int32_t root_;
  Subtree own_;
  std::vector<Subtree> children_;
};

}  // namespace backplane::core
