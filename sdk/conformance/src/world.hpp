// SPDX-License-Identifier: Apache-2.0
//
// Memory that the processes of one case share; the supervisor maps it before it forks. It holds the store behind every
// host table, a barrier, and the step and state of each rank. A rank that is killed leaves its last step there.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <string_view>

namespace backplane::conformance {

using Nanoseconds = int64_t;

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kSecond = 1'000 * kMillisecond;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// CLOCK_MONOTONIC, the same in all processes.
Nanoseconds now();

constexpr int32_t kMaxRanks = 64;
constexpr int32_t kMaxMembers = kMaxRanks + 8;  // ranks and extra_processes

// The state of a rank, as a failure detector would report it.
enum class RankState : uint32_t {
  kAlive,
  kLost,     // its process died without leaving, or was stopped for too long
  kDeparted  // its process ended in an orderly way
};

class World {
 public:
  // One per running case. Throws std::runtime_error if there is no memory.
  static World* make(int32_t ranks);
  static void free(World* world);

  int32_t ranks() const { return ranks_; }

  // The store. Any process, any thread. `give_up` is asked at least every 20 ms while a call waits, and ends it.
  enum class Wait { kDone, kTimeout, kGivenUp };
  void set(std::string_view key, std::string_view value);
  std::optional<std::string> look(std::string_view key);
  Wait get(std::string_view key, std::string& value, Nanoseconds timeout, const std::function<bool()>& give_up);
  int64_t add(std::string_view key, int64_t delta);
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  bool erase(std::string_view key);

  // A barrier of all ranks. False: a rank failed or ended, or the timeout passed.
  bool barrier(Nanoseconds timeout);
  // Releases all barriers: a member failed.
  void break_barriers();
  bool broken() const { return broken_.load() != 0; }

  // Records that a group may have failed: a rank died or was stopped, an init failed, an agent was aborted.
  void mark_failed() { failed_.store(1); }
  bool has_failed() const { return failed_.load() != 0; }

  // Marks the end of the member's body; only its destructors still run.
  void leave(int32_t member);
  bool has_left(int32_t member) const { return members_[static_cast<size_t>(member)].has_left.load(); }
  // Waits until all ranks have left or ended.
  void await_leaving(Nanoseconds timeout);

  // The step of `member`, a rank or (from ranks() on) an extra process; at most 119 bytes.
  void set_step(int32_t member, std::string_view text);
  std::string step(int32_t member) const;

  void set_pid(int32_t member, pid_t pid);
  pid_t pid(int32_t member) const;

  // Written by the supervisor, read by the monitors of the other ranks.
  void set_state(int32_t rank, RankState state);
  RankState state(int32_t rank) const;
  // A counter of state changes. wait_for_state_change returns once it differs from `seen`, or after 50 ms.
  uint32_t states_version() const;
  void wait_for_state_change(uint32_t seen);

 private:
  struct Member {
    std::atomic<pid_t> pid;
    std::atomic<RankState> state;
    std::atomic<bool> has_left;
    std::array<std::atomic<char>, 120> step;
  };
  struct Entry;

  World() = default;
  Entry* find(std::string_view key);
  void put(std::string_view key, std::string_view value);
  void changed();

  class Lock;

  int32_t ranks_ = 0;
  pthread_mutex_t mutex_;
  std::atomic<uint32_t> changes_;  // a futex: of the store and the barriers
  std::atomic<uint32_t> states_;   // a futex
  std::atomic<uint32_t> arrived_;
  std::atomic<uint32_t> generation_;
  std::atomic<uint32_t> broken_;
  std::atomic<uint32_t> failed_;
  std::array<Member, kMaxMembers> members_;
  uint64_t used_ = 0;                        // bytes of the arena
  std::array<uint64_t, 4096> buckets_ = {};  // offsets into the arena, 0: none
};

}  // namespace backplane::conformance
