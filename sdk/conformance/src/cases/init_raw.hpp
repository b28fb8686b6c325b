// SPDX-License-Identifier: Apache-2.0
//
// Direct calls of init, for invalid arguments and for observing a call while it runs.
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
  // True while the plugin waits in the store, and for good once it has asked whether it should give up: then init waits
  // for others.
  bool waits() const { return inside_.load() > 0 || asked_.load(); }

 private:
  struct Watched;

  const bp_backend& backend_;
  const std::string space_;
  const OptionValues values_;
  std::vector<int32_t> global_ranks_;
  World& world_;
  Host host_;
  bp_host table_;
  std::atomic<int> inside_ = 0;
  std::atomic<bool> asked_ = false;
  bp_init init_ = {};
  bp_agent agent_ = {};
  bp_options* options_ = nullptr;
  bool started_ = false;
};

}  // namespace backplane::conformance::init
