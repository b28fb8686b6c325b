// SPDX-License-Identifier: Apache-2.0
#include "rank.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace backplane::conformance {
namespace {

constexpr Nanoseconds kPatience = 20 * kSecond;
constexpr size_t kLogKept = size_t{64} * 1024;

}  // namespace

Rank::Rank(const Run& run, int32_t id)
    : run_(run), id_(id), shared_random_(run.seed), own_random_(run.seed * 1'000'003 + static_cast<uint64_t>(id) + 1) {}

Rank::~Rank() {
  ended_.store(true);
  if (monitor_.joinable()) monitor_.join();
}

const bp_capability* Rank::capability(uint32_t op) const {
  for (uint32_t i = 0; i < backend().capability_count; ++i) {
    if (backend().capabilities[i]->op == op) return backend().capabilities[i];
  }
  return nullptr;
}

void Rank::record(Record::Kind kind, const std::string& expected, const std::string& actual) {
  run_.channel.send({kind, id_, {expected, actual, world().step(id_), std::to_string(now())}});
}

bool Rank::check(bool condition, const std::string& expected, const std::string& actual) {
  if (!condition) record(Record::kFinding, expected, actual);
  return condition;
}

void Rank::require(bool condition, const std::string& expected, const std::string& actual) {
  if (!condition) fail(expected, actual);
}

void Rank::leave() {
  world().mark_failed();
  world().break_barriers();
  {
    const std::lock_guard lock(mutex_);
    guarded_.clear();  // the agents may go now
  }
  throw BodyEnded();
}

void Rank::fail(const std::string& expected, const std::string& actual) {
  record(Record::kFatal, expected, actual);
  leave();
}

void Rank::skip(const std::string& reason) {
  run_.channel.send({Record::kSkip, id_, {reason}});
  leave_together();
}

// Waits until all ranks leave their bodies. Others may be in init, or in an operation with this rank, so its agents
// must live until then.
void Rank::leave_together() {
  world().break_barriers();
  world().leave(id_);
  world().await_leaving(hang_limit(kPatience));
  leave();
}

void Rank::harness_error(const std::string& what) {
  run_.channel.send({Record::kHarnessError, id_, {what}});
  leave();
}

uint64_t Rank::memory() const { return BP_BIT(run_.on_device ? BP_CUDA : BP_HOST); }

void Rank::cell(uint32_t op, uint32_t dtype, uint32_t reduce_op, uint32_t memory, bool passed) {
  if (run_.on_device && memory == BP_HOST) memory = BP_CUDA;
  run_.channel.send({Record::kCell,
                     id_,
                     {std::to_string(op), std::to_string(dtype), std::to_string(reduce_op), std::to_string(memory),
                      passed ? "1" : "0"}});
}

void Rank::barrier() {
  const std::string before = world().step(id_);
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
  if (mine.rank == -1) mine.rank = id_;
  if (mine.parent == nullptr) expect_world(mine.rank, mine.world_size == -1 ? size() : mine.world_size);
  mine.timeout = mine.timeout ? scaled(*mine.timeout) : hang_limit(kPatience);
  mine.options.insert(run_.options.begin(), run_.options.end());  // keeps what the plan says
  mine.on_device = run_.on_device;
  const LogSink log = [this](uint32_t level, const char* text) {
    const std::lock_guard lock(mutex_);
    if (logged_.size() < kLogKept) logged_ += std::string(text) + "\n";
    run_.channel.send({Record::kLog, id_, {std::to_string(level), text}});
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
  if (guarded) guard(*agent);
  agent->after_close = [this](const Host& host) { expect_no_report(host); };
  return agent;
}

void Rank::expect_world(int32_t rank, int32_t world_size) {
  if (!has_flag(BP_BACKEND_ONE_WORLD) || (rank == id_ && world_size == size())) return;
  skip(fmt::format("the case makes rank {} of {} of a process whose world is another one", rank, world_size));
}

void Rank::expect_no_report(const Host& host) {
  const std::vector<bp_error> reports = host.reports();
  if (reports.empty()) return;
  // A report may arrive before the failed rank's own.
  const Nanoseconds deadline = now() + scaled(kSecond / 5);
  while (!world().has_failed() && now() < deadline) usleep(5000);
  if (world().has_failed()) return;
  Outcome report;
  report.error = reports.front();
  report.status = report.error.status;
  check(false, "no report_failure in a group without failure or abort", report.text());
}

std::unique_ptr<Agent> Rank::open(const Plan& plan, bool guarded) {
  Outcome outcome;
  std::unique_ptr<Agent> agent = try_open(plan, outcome, guarded);
  require_ok(outcome, "init");
  return agent;
}

std::unique_ptr<DeviceMirror> Rank::mirror(const std::shared_ptr<MirrorMemory>& mirrors, bp_op* op) {
  if (!mirrors) return nullptr;
  auto made = std::make_unique<DeviceMirror>(mirrors, op);
  require(made->ok(), "memory of the device for an operation", "none");
  return made;
}

void Rank::guard(Agent& agent) {
  const std::lock_guard lock(mutex_);
  guarded_.push_back(&agent);
  agent.before_close = [this, &agent] { unguard(agent); };
  if (!monitor_.joinable()) monitor_ = std::thread([this] { watch(); });
}

void Rank::unguard(Agent& agent) {
  const std::lock_guard lock(mutex_);
  std::erase(guarded_, &agent);
}

void Rank::watch() {
  std::vector<const Agent*> aborted;  // each agent is aborted once, with the first loss
  while (!ended_.load()) {
    const uint32_t seen = world().states_version();
    int32_t lost = -1;
    for (int32_t rank = 0; rank < size() && lost < 0; ++rank) {
      if (rank != id_ && world().state(rank) == RankState::kLost) lost = rank;
    }
    if (lost >= 0) {
      const std::lock_guard lock(mutex_);
      for (Agent* agent : guarded_) {
        if (std::find(aborted.begin(), aborted.end(), agent) != aborted.end()) continue;
        agent->abort(BP_PEER_LOST, lost, fmt::format("rank {} is lost: its process ended", lost));
        aborted.push_back(agent);
      }
    }
    world().wait_for_state_change(seen);
  }
}

void Rank::die(int signal) {
  world().mark_failed();
  run_.channel.send({Record::kDying, id_, {std::to_string(signal)}});
  ::signal(signal, SIG_DFL);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
  ::kill(getpid(), signal);
  for (;;) pause();
}

void Rank::freeze(Nanoseconds time) {
  if (time < 0) world().mark_failed();
  const std::string over = fmt::format("freeze/{}/{}", id_, now());
  run_.channel.send({Record::kFreeze, id_, {std::to_string(time < 0 ? -1 : time / kMillisecond), over}});
  std::string word;
  world().get(over, word, time < 0 ? -1 : time + hang_limit(kPatience), [] { return false; });
}

void Rank::depart() {
  world().mark_failed();
  run_.channel.send({Record::kDone, id_, {}});
  _exit(0);
}

std::string Rank::logged() {
  const std::lock_guard lock(mutex_);
  return logged_;
}

}  // namespace backplane::conformance
