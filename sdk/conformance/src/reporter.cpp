// SPDX-License-Identifier: Apache-2.0
#include "reporter.hpp"

namespace backplane::conformance {

void Reporter::record(Record::Kind kind, const std::string& expected, const std::string& actual) {
  run().channel.send({kind, id(), {expected, actual, world().step(id()), std::to_string(now())}});
}

bool Reporter::check(bool condition, const std::string& expected, const std::string& actual) {
  if (!condition) record(Record::kFinding, expected, actual);
  return condition;
}

bool Reporter::check_time(Nanoseconds took, Nanoseconds most, const std::string& what) {
  return check(took <= most, fmt::format("{} within {} ms", what, most / kMillisecond),
               fmt::format("it took {} ms", took / kMillisecond));
}

void Reporter::require(bool condition, const std::string& expected, const std::string& actual) {
  if (!condition) fail(expected, actual);
}

void Reporter::fail(const std::string& expected, const std::string& actual) {
  record(Record::kFatal, expected, actual);
  leave();
}

void Reporter::skip(const std::string& reason) {
  run().channel.send({Record::kSkip, id(), {reason}});
  leave_together();
}

void Reporter::harness_error(const std::string& what) {
  run().channel.send({Record::kHarnessError, id(), {what}});
  leave();
}

void Reporter::cell(uint32_t op, uint32_t dtype, uint32_t reduce_op, uint32_t memory, bool passed) {
  if (run().on_device && memory == BP_HOST) memory = BP_CUDA;
  run().channel.send({Record::kCell,
                      id(),
                      {std::to_string(op), std::to_string(dtype), std::to_string(reduce_op), std::to_string(memory),
                       passed ? "1" : "0"}});
}

void Reporter::leave() {
  world().mark_failed();
  world().break_barriers();
  if (before_leaving) before_leaving();
  throw BodyEnded();
}

// Waits until all ranks leave their bodies. Others may be in init, or in an operation with this rank, so its agents
// must live until then.
void Reporter::leave_together() {
  world().break_barriers();
  world().leave(id());
  world().await_leaving(hang_limit(20 * kSecond));
  leave();
}

}  // namespace backplane::conformance
