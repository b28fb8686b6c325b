// SPDX-License-Identifier: Apache-2.0
//
// The process group: messages on the threads of those who wait for them, collectives inline (BP_OP_SYNC) or one after
// the other on a thread of their own.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

#include "backplane/sdk/sdk.hpp"
#include "backplane/sdk/worker.hpp"
#include "brief_lock.hpp"
#include "collectives.hpp"
#include "meeting.hpp"
#include "messages.hpp"

namespace backplane::shm {

// What the options say; who polls among more ranks than processors only keeps them from running. `peers`: null in a
// group of one.
Patience patience_of(const sdk::Options& options, const Peers* peers);

class Group final : public sdk::ProcessGroup {
 public:
  explicit Group(const sdk::Context& context);
  ~Group() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;
  const void* extension(std::string_view id) override;

 private:
  // A collective that the worker is to do.
  std::unique_ptr<sdk::Work> submit_queued(const bp_op& op);
  void run(const bp_op& op, Limit& limit);
  [[noreturn]] void fail_again() const;

  const int32_t world_size_;
  Bell own_bell_{};  // of a group of one
  const Reductions reductions_;
  const std::unique_ptr<Segment> segment_;    // null in a group of one
  const std::unique_ptr<CrossMemory> cross_;  // null: nobody reads in other processes
  Waiting waiting_;
  Messages messages_;
  std::optional<Steps> steps_;
  std::optional<Collectives> collectives_;
  BriefLock running_;                   // held while a collective runs, which hardly ever meets another one here
  std::optional<sdk::Failure> broken_;  // guarded by running_: a collective failed amid its steps
  std::atomic<uint64_t> queued_ = 0;    // collectives that the worker has or will have
  sdk::Workers workers_{1};             // last: its thread uses all of the above
};

}  // namespace backplane::shm
