// SPDX-License-Identifier: Apache-2.0
//
// The memory of a row, and what must be in it after an operation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "measure/task.hpp"

namespace backplane::bench {

class Target;

// Input and output of one rank, large enough for the row's operation, from the target or aligned to pages; touched,
// zero (so that sums of sums stay finite), unless it is a device's.
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

// Does the row's operation once, for rooted ones once per root, with inputs that tell ranks and places apart. Returns
// what is wrong on this rank, "" if nothing is. All ranks call it.
std::string check_results(Target& target, const Row& row, Buffers& buffers);

}  // namespace backplane::bench
