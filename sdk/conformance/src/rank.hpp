// SPDX-License-Identifier: Apache-2.0
//
// The interface of a case's body: one rank, its backend, and functions that record findings.
//
// A body runs on every rank. It opens agents, uses them, and checks the results. `require` and `fail` leave the body by
// throwing BodyEnded, which only the runner catches; the supervisor then ends the other ranks after a short grace
// period and does not blame them. A body must not swallow BodyEnded, nor call these functions in a callback of the
// plugin.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent.hpp"
#include "channel.hpp"
#include "machine_time.hpp"
#include "world.hpp"

namespace backplane::conformance {

struct BodyEnded {};

// The parameters that all ranks of a run share.
struct Run {
  World* world = nullptr;
  Channel channel{-1};
  uint64_t seed = 0;
  double timeout_scale = 1;
  double busy_factor = 1;               // of the machine when the case began
  std::string path;                     // of the plugin; empty if it is linked in
  const bp_plugin* plugin = nullptr;    // null in cases that load it themselves
  const bp_backend* backend = nullptr;  // the backend under test; null in those cases and in extra processes
  std::string backend_id;
  std::map<std::string, std::string> options;  // the subject's
  bool on_device = false;                      // as in Settings
};

class Rank {
 public:
  Rank(const Run& run, int32_t id);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int32_t id() const { return id_; }
  int32_t size() const { return run_.world->ranks(); }
  // Whether this is an extra process (Case::extra_processes), not a rank. Their ids start at size().
  bool is_extra() const { return id_ >= size(); }
  int32_t next() const { return (id_ + 1) % size(); }
  int32_t previous() const { return (id_ + size() - 1) % size(); }

  const Run& run() const { return run_; }
  World& world() const { return *run_.world; }
  const bp_plugin& plugin() const { return *run_.plugin; }
  const bp_backend& backend() const { return *run_.backend; }
  bool has_flag(uint32_t flag) const { return (backend().flags & flag) != 0; }
  // The backend's declaration of a native operation, or nullptr.
  const bp_capability* capability(uint32_t op) const;
  // The bit of the memory that operations get, as in bp_capability.
  uint64_t memory() const;

  // Random numbers derived from the seed: the same on all ranks, and different on each rank.
  std::mt19937_64& shared_random() { return shared_random_; }
  std::mt19937_64& random() { return own_random_; }

  // Multiplies a time by the user's factor for slow machines.
  Nanoseconds scaled(Nanoseconds time) const {
    return static_cast<Nanoseconds>(static_cast<double>(time) * run_.timeout_scale);
  }
  // The same for a limit that only ends hangs: longer on a busy machine.
  Nanoseconds hang_limit(Nanoseconds time) const {
    return static_cast<Nanoseconds>(static_cast<double>(scaled(time)) * run_.busy_factor);
  }

  // Names the step that begins now. Findings, hangs and deaths report it.
  void step(const std::string& what) { world().set_step(id_, what); }

  // Records a finding unless the condition holds, and continues. Returns the condition.
  bool check(bool condition, const std::string& expected, const std::string& actual);
  // Records a finding and leaves the body unless the condition holds.
  void require(bool condition, const std::string& expected, const std::string& actual);
  // Checks that `what` took at most `most`, which the caller has scaled.
  bool check_time(Nanoseconds took, Nanoseconds most, const std::string& what) {
    return check(took <= most, fmt::format("{} within {} ms", what, most / kMillisecond),
                 fmt::format("it took {} ms", took / kMillisecond));
  }
  [[noreturn]] void fail(const std::string& expected, const std::string& actual);
  // Skips the case for a reason found while running. Returns to the runner when all ranks leave their bodies, so that
  // no rank takes this one for lost.
  [[noreturn]] void skip(const std::string& reason);
  // Ends the check: the harness itself failed (no memory, fork failed, ...).
  [[noreturn]] void harness_error(const std::string& what);
  void require_ok(const Outcome& outcome, const std::string& what) {
    require(outcome.ok(), what + " succeeds", outcome.text());
  }
  // Records a correct or wrong result in a cell of the capability matrix.
  void cell(uint32_t op, uint32_t dtype, uint32_t reduce_op, uint32_t memory, bool passed);

  // Waits for all ranks; does not use the plugin. Leaves the body after 20 s (hang_limit).
  void barrier();
  // Sets a value that other ranks read with await_value; does not use the plugin.
  void publish(const std::string& key, const std::string& value) { world().set("harness/" + key, value); }
  // Waits for a published value. Leaves the body after 20 s (hang_limit).
  std::string await_value(const std::string& key);

  // Starts an agent. With `guarded` this rank's monitor aborts it when a rank is lost, as the core would. Leaves the
  // body if init fails.
  std::unique_ptr<Agent> open(const Plan& plan = {}, bool guarded = false);
  // Like open, but returns null and the outcome if init fails.
  std::unique_ptr<Agent> try_open(const Plan& plan, Outcome& outcome, bool guarded = false);
  // Skips the case if the backend has BP_BACKEND_ONE_WORLD and the group is not its world. Cases should declare that in
  // Needs::without.
  void expect_world(int32_t rank, int32_t world_size);
  // Makes the mirror of an operation, for cases that call the table directly. Null: none is needed. Leaves the body if
  // there is no memory for it. Keep it until the operation is terminal.
  std::unique_ptr<DeviceMirror> mirror(const std::shared_ptr<MirrorMemory>& mirrors, bp_op* op);
  // Until the agent is closed, the loss of a rank aborts it with BP_PEER_LOST, naming that rank.
  void guard(Agent& agent);

  // Ends this process by a signal without a finding. The supervisor marks this rank as lost.
  [[noreturn]] void die(int signal);
  // Stops this process (SIGSTOP) for `time` and returns when it continues. Negative: indefinitely; the rank counts as
  // lost after 1 s.
  void freeze(Nanoseconds time);
  // Ends this process with _exit(0), an orderly end.
  [[noreturn]] void depart();

  // The plugin's log lines on this rank so far.
  std::string logged();

 private:
  [[noreturn]] void leave();
  [[noreturn]] void leave_together();
  void unguard(Agent& agent);
  void expect_no_report(const Host& host);
  void watch();
  void record(Record::Kind kind, const std::string& expected, const std::string& actual);

  const Run& run_;
  const int32_t id_;
  std::mt19937_64 shared_random_;
  std::mt19937_64 own_random_;
  std::mutex mutex_;
  std::vector<Agent*> guarded_;
  std::string logged_;
  std::atomic<bool> ended_ = false;
  std::thread monitor_;
};

}  // namespace backplane::conformance
