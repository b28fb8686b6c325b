// SPDX-License-Identifier: Apache-2.0
#include "rank.hpp"

#include <unistd.h>

namespace backplane::conformance {
namespace {

constexpr Nanoseconds kPatience = 20 * kSecond;
constexpr size_t kLogKept = size_t{64} * 1024;

}  // namespace

Rank::Rank(const Run& run, int32_t id) : Reporter(run, id), monitor_(*run.world, id) {
  before_leaving = [this] { monitor_.release(); };
}

void Rank::barrier() {
  const std::string before = world().step(id());
  step(before + " (then waiting for the other ranks)");
  if (!world().barrier(hang_limit(kPatience))) {  // the supervisor reports the missing rank
    if (world().broken()) leave_together();
    leave();
  }
  step(before);
}

std::string Rank::await_value(const std::string& key) {
  std::string value;
  if (world().get("harness/" + key, value, hang_limit(kPatience), [] { return false; }) != World::Wait::kDone) {
    leave();
  }
  return value;
}

std::unique_ptr<Agent> Rank::try_open(const Plan& plan, Outcome& outcome, bool guarded) {
  Plan mine = plan;
  if (mine.rank == -1) mine.rank = id();
  if (mine.parent == nullptr) expect_world(*this, mine.rank, mine.world_size == -1 ? size() : mine.world_size);
  mine.timeout = mine.timeout ? scaled(*mine.timeout) : hang_limit(kPatience);
  mine.options.insert(run().options.begin(), run().options.end());  // keeps what the plan says
  mine.on_device = run().on_device;
  const LogSink log = [this](uint32_t level, const char* text) {
    const std::lock_guard lock(mutex_);
    if (logged_.size() < kLogKept) logged_ += std::string(text) + "\n";
    run().channel.send({Record::kLog, id(), {std::to_string(level), text}});
  };
  step(fmt::format("in init of {} as rank {}", plan.space, mine.rank));
  auto agent = std::make_unique<Agent>(backend(), world(), mine, log, outcome);
  if (!outcome.ok()) return nullptr;
  step(fmt::format("after init of {}", plan.space));
  const bp_agent& raw = agent->raw();
  require(raw.api != nullptr && raw.kind == BP_KIND_PROCESS_GROUP, "an agent with a process group table",
          fmt::format("kind {}, api {}", raw.kind, fmt::ptr(raw.api)));
  require(raw.rank == agent->rank() && raw.world_size == agent->size(),
          fmt::format("an agent that is rank {} of {}", agent->rank(), agent->size()),
          fmt::format("rank {} of {}", raw.rank, raw.world_size));
  if (guarded) monitor_.guard(*agent);
  agent->after_close = [this](const Host& host) { expect_no_report(host); };
  return agent;
}

std::unique_ptr<Agent> Rank::open(const Plan& plan, bool guarded) {
  Outcome outcome;
  std::unique_ptr<Agent> agent = try_open(plan, outcome, guarded);
  require_ok(outcome, "init");
  return agent;
}

void Rank::expect_no_report(const Host& host) {
  const std::vector<bp_error> reports = host.reports();
  if (reports.empty()) return;
  // A report may arrive before the failed rank's own.
  const Nanoseconds deadline = now() + hang_limit(kSecond / 5);
  while (!world().has_failed() && now() < deadline) usleep(5000);
  if (world().has_failed()) return;
  Outcome report;
  report.error = reports.front();
  report.status = report.error.status;
  check(false, "no report_failure in a group without failure or abort", report.text());
}

std::string Rank::logged() {
  const std::lock_guard lock(mutex_);
  return logged_;
}

void expect_world(Rank& rank, int32_t rank_in_group, int32_t world_size) {
  if (!rank.has_flag(BP_BACKEND_ONE_WORLD) || (rank_in_group == rank.id() && world_size == rank.size())) return;
  rank.skip(
      fmt::format("the case makes rank {} of {} of a process whose world is another one", rank_in_group, world_size));
}

std::unique_ptr<DeviceMirror> mirror(Rank& rank, const std::shared_ptr<MirrorMemory>& mirrors, bp_op* op) {
  if (!mirrors) return nullptr;
  auto made = std::make_unique<DeviceMirror>(mirrors, op);
  rank.require(made->ok(), "memory of the device for an operation", "none");
  return made;
}

}  // namespace backplane::conformance
