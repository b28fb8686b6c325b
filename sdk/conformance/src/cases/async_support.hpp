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
constexpr Nanoseconds kEndLimit = 10 * kSecond;   // for operations that should end at once; to be scaled
constexpr uint64_t kLarge = UINT64_C(8) << 20;    // larger than socket buffers and eager limits

// An agent of the world, with its own store prefix.
Plan in_space(const std::string& space);
// The same for a group of some ranks of the world, in this order, of which the caller is the `place`th.
Plan in_space(const std::string& space, const std::vector<int32_t>& members, int32_t place);

// A pattern derived from the key; and the first index at which bytes differ from it, or -1.
std::vector<uint8_t> bytes_of(uint64_t key, uint64_t size);
int64_t first_wrong(const std::vector<uint8_t>& bytes, uint64_t key);

// Leaves the body unless `bytes` are those of the key.
void require_bytes(Rank& rank, const std::vector<uint8_t>& bytes, uint64_t key, const std::string& what);

// A ring over the agent's group: each rank sends to the next one and receives from the previous one. Returns the
// outcome of the operations. Leaves the body if the bytes are wrong. `salt` makes the patterns of different calls
// differ.
Outcome try_ring(Rank& rank, Agent& agent, uint64_t tag, uint64_t salt = 0, uint64_t size = 1000);
// The same, but leaves the body unless it succeeds. `when` completes "a message ... ".
void ring(Rank& rank, Agent& agent, const std::string& when, uint64_t tag, uint64_t salt = 0, uint64_t size = 1000);

// Makes a native operation that needs every rank: all_reduce of one i32, or barrier. False: the backend has neither.
// `memory` is the buffer of all_reduce and must outlive the operation.
bool make_collective(const Rank& rank, bp_op& op, int32_t* memory);

// A recv from the next rank that no message matches.
bp_op unmatched_recv(Agent& agent, void* memory, uint64_t size);

// Ends all operations: cancels, waits up to a second, then aborts the agent.
void abandon(Rank& rank, Agent& agent, std::vector<Pending>& pending);

// Closes the agent. Records a finding if that takes longer than a few seconds.
void close_in_time(Rank& rank, Agent& agent, const std::string& when);

// A thread that a case starts. Its body must not call functions that may throw BodyEnded: it stores its observations
// for the rank's own thread.
class TestThread {
 public:
  explicit TestThread(std::function<void()> body);
  // Joins. If the body is being left and the thread does not end within a second, detaches it.
  ~TestThread();
  TestThread(const TestThread&) = delete;
  TestThread& operator=(const TestThread&) = delete;

  bool ended() const { return state_->ended.load(); }
  // Returns whether it has ended within `timeout`.
  bool await(Nanoseconds timeout) const;
  // Waits until the thread sleeps in the kernel or has ended. A thread that does neither within half a second is busy
  // waiting.
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

// An operation that blocks a separate thread until it is terminal: inside submit (BP_OP_SYNC), or inside work_wait.
class Blocked {
 public:
  enum class How { kInSubmit, kInWait };
  // Removes the op's deadline. Returns when the thread probably blocks.
  Blocked(Agent& agent, bp_op op, How how);

  bool await(Nanoseconds timeout) const { return thread_->await(timeout); }
  bool ended() const { return thread_->ended(); }
  // Call only when it has ended.
  const Outcome& outcome() const { return state_->outcome; }
  Nanoseconds ended_at() const { return state_->ended_at; }

 private:
  struct State {
    Outcome outcome;
    Nanoseconds ended_at = 0;
  };
  std::shared_ptr<State> state_;
  std::unique_ptr<TestThread> thread_;
};

const char* name_of(Blocked::How how);

// Calls `done` every millisecond until it returns true or the timeout has passed. Returns its last result.
bool poll_until(Nanoseconds timeout, const std::function<bool()>& done);

// Whether the condition holds on any rank. Call on all ranks, with a key of its own.
bool on_any_rank(Rank& rank, const std::string& key, bool here);

// Checks the rules of status.h for every report (errors_report.cpp).
void check_report(Rank& rank, const Outcome& outcome, const std::string& what);

}  // namespace backplane::conformance
