// SPDX-License-Identifier: Apache-2.0
//
// A member that records findings. `require`, `fail` and `skip` leave the body by throwing BodyEnded, which only the
// runner catches; the supervisor then ends the other ranks after a short grace period and does not blame them. A body
// must not swallow BodyEnded, nor call these functions in a callback of the plugin.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>

#include "agent.hpp"
#include "member.hpp"

namespace backplane::conformance {

struct BodyEnded {};

class Reporter : public Member {
 public:
  using Member::Member;

  // Names the step that begins now. Findings, hangs and deaths report it.
  void step(const std::string& what) { world().set_step(id(), what); }

  // Records a finding unless the condition holds, and continues. Returns the condition.
  bool check(bool condition, const std::string& expected, const std::string& actual);
  // Checks that `what` took at most `most`, which the caller has scaled.
  bool check_time(Nanoseconds took, Nanoseconds most, const std::string& what);
  // Records a finding and leaves the body unless the condition holds.
  void require(bool condition, const std::string& expected, const std::string& actual);
  void require_ok(const Outcome& outcome, const std::string& what) {
    require(outcome.ok(), what + " succeeds", outcome.text());
  }
  [[noreturn]] void fail(const std::string& expected, const std::string& actual);
  // Skips the case for a reason found while running. Returns to the runner when all ranks leave their bodies, so that
  // no rank takes this one for lost.
  [[noreturn]] void skip(const std::string& reason);
  // Ends the check: the harness itself failed (no memory, fork failed, ...).
  [[noreturn]] void harness_error(const std::string& what);
  // Records a correct or wrong result in a cell of the capability matrix.
  void cell(uint32_t op, uint32_t dtype, uint32_t reduce_op, uint32_t memory, bool passed);

 protected:
  [[noreturn]] void leave();
  [[noreturn]] void leave_together();
  // Called before the body is left by BodyEnded.
  std::function<void()> before_leaving;

 private:
  void record(Record::Kind kind, const std::string& expected, const std::string& actual);
};

}  // namespace backplane::conformance
