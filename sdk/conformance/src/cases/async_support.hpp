// SPDX-License-Identifier: Apache-2.0
//
// Shared by the cases of async, groups, time, abort and errors.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../case.hpp"

namespace backplane::conformance {

constexpr uint64_t kSilentTag = 4'000'000'007;    // no message has this tag
constexpr Nanoseconds kAbortBound = kSecond / 2;  // process_group.h, ABORT; to be scaled
constexpr Nanoseconds kCloseBound = 5 * kSecond;  // "at most a few seconds"; to be scaled
constexpr Nanoseconds kPlenty = 10 * kSecond;     // for operations that should end at once; to be scaled
constexpr uint64_t kLarge = UINT64_C(8) << 20;    // larger than socket buffers and eager limits

// An agent of the world, with its own store prefix.
Plan in_space(const std::string& space);
// The same for a group of some ranks of the world, in this order, of which the caller is the `place`th.
Plan in_space(const std::string& space, const std::vector<int32_t>& members, int32_t place);

// A pattern derived from the key, and the first index at which bytes differ from it (-1: none).
std::vector<uint8_t> bytes_of(uint64_t key, uint64_t size);
int64_t first_wrong(const std::vector<uint8_t>& bytes, uint64_t key);

// Leaves the body unless `bytes` are those of the key.
void require_bytes(Rank& rank, const std::vector<uint8_t>& bytes, uint64_t key, const std::string& what);

// A ring over the agent's group: each of its ranks sends to the next one and receives from the one before. Wrong bytes
// leave the body; returns how the operations ended. `salt` makes the patterns of different calls differ.
Outcome try_ring(Rank& rank, Agent& agent, uint64_t tag, uint64_t salt = 0, uint64_t size = 1000);
// The same, and leaves the body unless it worked. `when` completes "a message ... ".
void ring(Rank& rank, Agent& agent, const std::string& when, uint64_t tag, uint64_t salt = 0, uint64_t size = 1000);

// A native operation that needs every rank: all_reduce of one i32, or barrier. False: the backend has neither. `memory`
// is the buffer of all_reduce and must outlive it.
bool make_meeting(const Rank& rank, bp_op& op, int32_t* memory);

// A recv from the next rank that no message matches.
bp_op hopeless(Agent& agent, void* memory, uint64_t size);

// Ends all operations: cancels, waits up to a second, then aborts the agent.
void abandon(Rank& rank, Agent& agent, std::vector<Pending>& pending);

// Closes the agent; a finding if that takes longer than a few seconds.
void close_in_time(Rank& rank, Agent& agent, const std::string& when);

// A thread of a case's own. Its body must not use what may throw BodyEnded: it keeps what it saw for the rank's own
// thread.
class Aside {
 public:
  explicit Aside(std::function<void()> body);
  // Joins; if the case is being left and the thread does not end within a second, it is left behind.
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  bool ended() const { return state_->ended.load(); }
  // True if it has ended by then.
  bool await(Nanoseconds timeout) const;
  // Waits until the thread sleeps in the kernel (or has ended, or half a second is over: then it is busy waiting).
  void await_asleep() const;
  pid_t id() const { return state_->id.load(); }

 private:
  struct State {
    std::atomic<bool> ended = false;
    std::atomic<pid_t> id = 0;
  };
  std::shared_ptr<State> state_;
  std::thread thread_;
};

// An operation that blocks a thread of its own until it is terminal: inside submit (BP_OP_SYNC), or inside work_wait.
class Blocked {
 public:
  enum class How { kInSubmit, kInWait };
  // The op without deadline; returns when the thread is likely to be inside.
  Blocked(Agent& agent, bp_op op, How how);

  bool await(Nanoseconds timeout) const { return thread_->await(timeout); }
  bool ended() const { return thread_->ended(); }
  // Only when it has ended.
  const Outcome& outcome() const { return state_->outcome; }
  Nanoseconds ended_at() const { return state_->ended_at; }

 private:
  struct State {
    Outcome outcome;
    Nanoseconds ended_at = 0;
  };
  std::shared_ptr<State> state_;
  std::unique_ptr<Aside> thread_;
};

const char* name_of(Blocked::How how);

// Pauses of a millisecond until `done` or the time is over; what it last said.
bool poll_until(Nanoseconds timeout, const std::function<bool()>& done);

// Checks what status.h demands of every report: see errors_report.cpp.
void check_report(Rank& rank, const Outcome& outcome, const std::string& what);

}  // namespace backplane::conformance
