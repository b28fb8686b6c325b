// SPDX-License-Identifier: Apache-2.0
//
// init as the ABI has it, for calls that no sane caller makes and for looking at a call while it runs.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "../case.hpp"

namespace backplane::conformance::init {

class RawInit {
 public:
  // `rank` and `world_size` may be anything.
  RawInit(Rank& rank, std::string space, int32_t rank_in_group, int32_t world_size, Nanoseconds timeout);
  ~RawInit();
  RawInit(const RawInit&) = delete;
  RawInit& operator=(const RawInit&) = delete;

  // construct_options and init. Blocks; records nothing, so it may run on a thread of its own.
  Outcome run();
  // destroy, if run went well.
  void close();

  void request_abort() { host_.request_abort(); }
  // How often the plugin has asked the host for anything so far.
  int calls() const { return calls_.load(); }

 private:
  struct Counting;

  const bp_backend& backend_;
  const std::string space_;
  const OptionValues values_;
  std::vector<int32_t> global_ranks_;
  Host host_;
  bp_host table_;
  std::atomic<int> calls_ = 0;
  bp_init init_ = {};
  bp_agent agent_ = {};
  bp_options* options_ = nullptr;
  bool started_ = false;
};

}  // namespace backplane::conformance::init
