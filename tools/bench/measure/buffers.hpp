// SPDX-License-Identifier: Apache-2.0
//
// The buffers of a row, and the check of their content after an operation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "measure/task.hpp"

namespace backplane::bench {

class Target;

// Input and output of one rank for a row's operation: from the target, or host memory aligned to pages. Host memory is
// touched and zero, so that repeated sums stay finite.
class Buffers {
 public:
  Buffers(const Row& row, Target& target);

  float* in() { return in_.get(); }
  float* out() { return out_.get(); }
  uint64_t in_count() const { return in_count_; }
  uint64_t out_count() const { return out_count_; }
  void clear();

 private:
  const bool is_host_;
  uint64_t in_count_;
  uint64_t out_count_;
  std::shared_ptr<float> in_;
  std::shared_ptr<float> out_;
};

// Performs the row's operation once, or once per root, with inputs that differ by rank and index. Returns an error text
// for this rank, "" if its results are correct. Collective.
std::string check_results(Target& target, const Row& row, Buffers& buffers);

}  // namespace backplane::bench
