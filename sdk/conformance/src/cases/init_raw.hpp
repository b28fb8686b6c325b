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

  // Calls construct_options and init. Blocks. Records no findings, so it may run on a separate thread.
  Outcome run();
  // Calls destroy, if run succeeded.
  void close();

  // Has the store's `number`th call (from 1) of init wait until release is called.
  void stop_at_call(int number) { stop_at_.store(number); }
  bool stopped() const { return stopped_.load(); }
  void release() {
    released_.store(true);
    released_.notify_all();
  }

  void request_abort() { host_.request_abort(); }
  // Whether init waits for other ranks: the plugin is in a call of the store, or has called abort_requested.
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
  std::atomic<int> calls_ = 0;
  std::atomic<int> stop_at_ = 0;  // 0: at none
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> released_ = false;
  bp_init init_ = {};
  bp_agent agent_ = {};
  bp_options* options_ = nullptr;
  bool started_ = false;
};

}  // namespace backplane::conformance::init
