// SPDX-License-Identifier: Apache-2.0
//
// What the body of a case sees: one rank, its backend, and the means to say what is wrong.
//
// A body runs on every rank. It opens agents, uses them, and states what it expects. `require` and `fail` leave the
// body at once (by throwing BodyEnded, which nobody but the runner catches); the other ranks are then ended by the
// supervisor after a short grace, without being blamed. Never swallow BodyEnded, never expect anything from within a
// callback of the plugin.
#pragma once

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
#include "say.hpp"
#include "world.hpp"

namespace backplane::conformance {

struct BodyEnded {};

// What is the same for all ranks of a run.
struct Run {
  World* world = nullptr;
  Channel channel{-1};
  uint64_t seed = 0;
  double patience = 1;
  std::string path;                     // of the plugin; empty if it is linked in
  const bp_plugin* plugin = nullptr;    // null in cases that load it themselves
  const bp_backend* backend = nullptr;  // the one that is checked; null likewise, and in extra_processes
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
  // Not a rank but a process beside them (Case::extra_processes); ids count on from size().
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

  // Numbers that are the same on all ranks, and numbers of this rank's own; both follow from the seed.
  std::mt19937_64& shared_random() { return shared_random_; }
  std::mt19937_64& random() { return own_random_; }

  // A time on this machine: multiplied by the user's patience.
  Nanoseconds scaled(Nanoseconds time) const {
    return static_cast<Nanoseconds>(static_cast<double>(time) * run_.patience);
  }

  // What this rank does from now on; told if it fails, hangs or dies.
  void step(const std::string& what) { world().set_step(id_, what); }

  // Records a finding; the body goes on. True if the condition holds.
  bool check(bool condition, const std::string& expected, const std::string& actual);
  // Records a finding and leaves the body.
  void require(bool condition, const std::string& expected, const std::string& actual);
  [[noreturn]] void fail(const std::string& expected, const std::string& actual);
  // The case does not apply here, for a reason that only running it could show. Ends when all ranks leave their bodies,
  // so that none of them takes it for a loss.
  [[noreturn]] void skip(const std::string& reason);
  // The harness cannot do its own work here (no memory, no fork ...).
  [[noreturn]] void harness_error(const std::string& what);
  void require_ok(const Outcome& outcome, const std::string& what) {
    require(outcome.ok(), what + " succeeds", outcome.text());
  }
  // A cell of the capability matrix was seen to be right or wrong.
  void cell(uint32_t op, uint32_t dtype, uint32_t reduce_op, uint32_t memory, bool passed);

  // Waits for all ranks, without the plugin. Leaves the body if they do not come within 20 s (scaled).
  void barrier();
  // Words between ranks, without the plugin.
  void publish(const std::string& key, const std::string& value) { world().set("harness/" + key, value); }
  // Waits up to 20 s (scaled) and leaves the body if nobody tells.
  std::string await_value(const std::string& key);

  // Starts an agent; with `guarded` this rank's monitor aborts it, as the core would, when a rank is lost. Leaves the
  // body if init fails.
  std::unique_ptr<Agent> open(const Plan& plan = {}, bool guarded = false);
  // The same, but says how it went instead: null and the outcome if init failed.
  std::unique_ptr<Agent> try_open(const Plan& plan, Outcome& outcome, bool guarded = false);
  // Leaves the body, as a skip, if a backend of one world is to make a group without a parent that is not its world.
  // The case ought to say so before (Needs::without).
  void expect_world(int32_t rank, int32_t world_size);
  // The stand-in of an operation for those who call the table themselves; null: it needs none. Leaves the body if there
  // is no memory for it. Keep it until the operation is terminal.
  std::unique_ptr<DeviceMirror> mirror(const std::shared_ptr<MirrorMemory>& mirrors, bp_op* op);
  // From now on, until it is closed, a lost rank aborts the agent (BP_PEER_LOST, naming it).
  void guard(Agent& agent);

  // Ends this process by a signal, as the case wants it: no finding. The supervisor marks this rank as lost.
  [[noreturn]] void die(int signal);
  // Stops this process (SIGSTOP) for so long, or for ever if negative (then this rank counts as lost after 1 s).
  // Returns when it goes on; for ever does not return.
  void freeze(Nanoseconds time);
  // Ends this process in order, without returning from the body: _exit(0).
  [[noreturn]] void depart();

  // What the plugin has logged on this rank so far.
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
