// SPDX-License-Identifier: Apache-2.0
//
// The interface of a case's body: one rank, its backend, and functions that record findings.
//
// A body runs on every rank. It opens agents, uses them, and checks the results.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "loss_monitor.hpp"
#include "machine_time.hpp"
#include "reporter.hpp"

namespace backplane::conformance {

class Rank final : public Reporter {
 public:
  Rank(const Run& run, int32_t id);

  // Waits for all ranks; does not use the plugin. Leaves the body after 20 s (hang_limit).
  void barrier();
  // Sets a value that other ranks read with await_value; does not use the plugin.
  void publish(const std::string& key, const std::string& value) { world().set("harness/" + key, value); }
  // Waits for a published value. Leaves the body after 20 s (hang_limit).
  std::string await_value(const std::string& key);

  // Starts an agent. With `guarded` the monitor aborts it when a rank is lost, as the core would. Leaves the body if
  // init fails.
  std::unique_ptr<Agent> open(const Plan& plan = {}, bool guarded = false);
  // Like open, but returns null and the outcome if init fails.
  std::unique_ptr<Agent> try_open(const Plan& plan, Outcome& outcome, bool guarded = false);
  LossMonitor& monitor() { return monitor_; }

  // The plugin's log lines on this rank so far.
  std::string logged();

 private:
  void expect_no_report(const Host& host);

  LossMonitor monitor_;
  std::mutex mutex_;
  std::string logged_;
};

// Skips the case if the backend has BP_BACKEND_ONE_WORLD and the group is not its world. Cases should declare that in
// Needs::without.
void expect_world(Rank& rank, int32_t rank_in_group, int32_t world_size);

// Makes the mirror of an operation, for cases that call the table directly. Null: none is needed. Leaves the body if
// there is no memory for it. Keep it until the operation is terminal.
std::unique_ptr<DeviceMirror> mirror(Rank& rank, const std::shared_ptr<MirrorMemory>& mirrors, bp_op* op);

}  // namespace backplane::conformance
