// SPDX-License-Identifier: Apache-2.0
//
// A request for a collective that the core performs on the group's serial executor.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "backplane/base/grace.hpp"
#include "backplane/base/owned_op.hpp"
#include "group/request.hpp"

namespace backplane::core {

class TaskRequest final : public Request {
 public:
  TaskRequest(std::shared_ptr<Group> group, Operation operation, std::function<void()> unpack);
  void cancel() override;
  bool cancel_breaks_group() const override { return true; }
  Deadline watchdog_deadline() const override { return deadline_.later(base::grace::kOverdueTask); }
  // Performs the collective. Called once, on the serial executor.
  void perform();

 private:
  void advance(Deadline deadline) override;
  void request_notice() override {}

  base::OwnedOp owned_;  // the arrays of operation_.op
  std::mutex done_mutex_;
  std::condition_variable done_changed_;
  bool done_ = false;
};

}  // namespace backplane::core
