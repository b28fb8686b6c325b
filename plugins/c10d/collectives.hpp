// SPDX-License-Identifier: Apache-2.0
//
// Native collectives, one after the other on a thread. They use copies of the buffers: torch cannot cancel a
// collective, and may still write to its tensors when the operation has failed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backplane/base/deadline.hpp"
#include "backplane/sdk/sdk.hpp"
#include "torch_group.hpp"

namespace backplane::c10d {

class Collectives : public std::enable_shared_from_this<Collectives> {
 public:
  explicit Collectives(std::shared_ptr<TorchGroup> torch) : torch_(std::move(torch)) {}

  // Starts the thread. Throws BP_RESOURCE.
  void start();
  // Null: done. Does not block.
  std::unique_ptr<sdk::Work> submit(const bp_op& op);
  // Fails all collectives in flight and later ones, and makes blocked calls of torch fail. Does not block.
  void fail(const sdk::Failure& why) noexcept;
  // A peer was lost. If it ended in order, a collective to which it has contributed may still end: those in flight have
  // kGrace for that. Otherwise all collectives fail.
  void lost(const sdk::Failure& why, bool in_order);
  // Ends the thread after its current call. Those that do not end by the deadline are detached.
  void stop(const base::Deadline& deadline);

 private:
  struct Call;
  static constexpr std::chrono::seconds kGrace{2};

  void run();
  void perform(Call& call);
  void watch();
  void cancel(Call& call);
  // A collective has ended although torch may still perform it, for any time: fails those behind it, and later ones.
  void break_off(const sdk::Failure& why);
  sdk::Failure cause_of(const sdk::Failure& failure);

  const std::shared_ptr<TorchGroup> torch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Call>> queue_;  // the first one runs
  std::optional<sdk::Failure> failed_;
  std::optional<sdk::Failure> broken_off_;
  std::optional<sdk::Failure> lost_;
  bool stopped_ = false;
  int running_ = 0;  // threads
  std::thread thread_;
  std::thread watcher_;
};

}  // namespace backplane::c10d
