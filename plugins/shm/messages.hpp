// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives of the program's threads. Every waiting thread makes progress for all operations of the group,
// under one lock that no thread holds while it sleeps. protocol.hpp has what is done under the lock.
#pragma once

#include <memory>

#include "backplane/sdk/probe.hpp"
#include "backplane/sdk/process_group.hpp"
#include "completions.hpp"
#include "in_place.hpp"
#include "progress.hpp"
#include "progress_thread.hpp"
#include "protocol.hpp"
#include "spin_lock.hpp"

namespace backplane::shm {

class Messages final : public sdk::ProbeTable {
 public:
  // `view` and `peers` are null in a group of one, `pools` and `cross` if zero copy is not available. All must outlive
  // this object.
  Messages(int32_t rank, int32_t world_size, const View* view, Peers* peers, const Pools* pools, Waiter& waiter,
           CrossMemory* cross = nullptr);

  // Submits a BP_SEND or BP_RECV. Returns null if it is done. Any thread.
  std::unique_ptr<sdk::Work> submit(const bp_op& op);

  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override;
  void drop(bp_message* message) noexcept override;

  // Ends the progress thread. Call after an abort.
  void stop() { progress_thread_.stop(); }

  // Makes progress. A quick poll does nothing if another thread holds the lock.
  void poll(Poll mode);

 private:
  friend class MessageWork;
  class Lock;  // holds lock_

  bool start(Operation& operation, const bp_message* probed);
  void leave_in_flight(Operation& operation);
  bool receive_yielding(Operation& receive);
  bool wait(Operation& operation, int64_t timeout_ns);
  bool wait(Operation& operation, LazyDeadline& deadline);
  bool poll_for(const Operation& operation);
  void cancel(Operation& operation, const sdk::Failure& why);
  void on_end(Operation& operation, sdk::Notice notice);
  void fail_all_with_notice();

  const int32_t world_size_;
  Waiter& waiter_;
  SpinLock lock_;  // guards the following three
  Completions completions_;
  InPlace in_place_;
  Protocol protocol_;
  ProgressThread progress_thread_;  // last: its thread uses the fields above
};

}  // namespace backplane::shm
