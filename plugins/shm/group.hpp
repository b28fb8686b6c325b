// SPDX-License-Identifier: Apache-2.0
//
// The process group. Waiting threads move messages. Collectives run on the caller's thread (BP_OP_SYNC) or one after
// the other on a worker.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

#include "backplane/sdk/sdk.hpp"
#include "backplane/sdk/worker.hpp"
#include "collectives.hpp"
#include "messages.hpp"
#include "segment.hpp"
#include "spin_lock.hpp"

namespace backplane::shm {

// The wait policy of the options. With more ranks than processors polling is disabled, since it would keep other ranks
// from running. `peers` is null in a group of one.
WaitPolicy wait_policy_of(const sdk::Options& options, const Peers* peers);

class Group final : public sdk::ProcessGroup {
 public:
  explicit Group(const sdk::Context& context);
  ~Group() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;
  const void* extension(std::string_view id) override;

 private:
  // A collective that this thread runs; others wait.
  class Running;

  // Submits a collective to the worker.
  std::unique_ptr<sdk::Work> submit_queued(const bp_op& op);
  void run(const bp_op& op, LazyDeadline& deadline);
  [[noreturn]] void fail_again() const;
  // Fails in the interruption hook, inside a collective of this thread: the group performs one at a time.
  void check_hook() const;

  const int32_t world_size_;
  Doorbell own_bell_{};  // used in a group of one
  const Reductions reductions_;
  const std::unique_ptr<Segment> segment_;    // null in a group of one
  const std::unique_ptr<CrossMemory> cross_;  // null: reading other processes is disabled
  sdk::Interruption interruption_;
  Waiter waiter_;
  Messages messages_;
  std::optional<Steps> steps_;
  std::optional<Collectives> collectives_;
  SpinLock running_;                    // held while a collective runs; rarely contended
  std::atomic<pthread_t> runner_ = {};  // the thread that runs it; 0: none
  // The failure of a collective, which leaves the steps inconsistent. Guarded by running_.
  std::optional<sdk::Failure> broken_;
  std::atomic<uint64_t> queued_ = 0;  // collectives queued for or running on the worker
  sdk::Workers workers_{1};           // last: its thread uses the fields above
};

}  // namespace backplane::shm
