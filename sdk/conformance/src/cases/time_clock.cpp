// SPDX-License-Identifier: Apache-2.0
//
// A jump of the wall clock must not change a wait. Instead of setting the clock, the case reads from /proc in which
// system call a thread sleeps, and with which arguments: a sleep until a time of CLOCK_REALTIME would change.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>

#include <array>
#include <fstream>
#include <sstream>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

struct SystemCall {
  int64_t number = -1;
  std::array<uint64_t, 6> arguments = {};
};

// False: the thread is not in a system call, or the kernel does not report it.
bool look_at(pid_t thread, SystemCall& call) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
  std::string line;
  if (!std::getline(file, line)) return false;
  std::istringstream words(line);
  if (!(words >> call.number)) return false;  // "running"
  for (uint64_t& argument : call.arguments) words >> std::hex >> argument;
  return !words.fail() && call.number >= 0;
}

// Describes how a jump of the wall clock changes the call; empty if it does not.
std::string depends_on_wall_clock(const SystemCall& call) {
  const auto operation = static_cast<int>(call.arguments[1]);
  if (call.number == SYS_futex && call.arguments[3] != 0 && (operation & FUTEX_CLOCK_REALTIME) != 0) {
    return "it sleeps in futex until a time of CLOCK_REALTIME";
  }
  if (call.number == SYS_clock_nanosleep && call.arguments[0] == CLOCK_REALTIME &&
      (call.arguments[1] & TIMER_ABSTIME) != 0) {
    return "it sleeps in clock_nanosleep until a time of CLOCK_REALTIME";
  }
  if (call.number == SYS_mq_timedreceive || call.number == SYS_mq_timedsend) {
    return "it sleeps in a message queue, whose deadlines are of CLOCK_REALTIME";
  }
  return "";
}

void wall_clock_jump(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> memory(100);
  for (const bool sync : {false, true}) {
    const std::string where = sync ? "submit (BP_OP_SYNC)" : "work_wait";
    rank.step("waiting in " + where);
    constexpr Nanoseconds kTimeout = 400 * kMillisecond;
    bp_op op = unmatched_recv(*agent, memory.data(), memory.size());
    op.timeout_ns = kTimeout;
    if (sync) op.flags = BP_OP_SYNC;
    Pending pending;
    bool seen = false;
    std::string wrong;
    {
      const TestThread waiting([&] {
        pending = agent->submit(op);
        static_cast<void>(pending.wait(kTimeout));
      });
      waiting.await_asleep();
      while (!waiting.ended()) {
        SystemCall call;
        if (look_at(waiting.id(), call)) {
          seen = true;
          if (wrong.empty()) wrong = depends_on_wall_clock(call);
        }
        static_cast<void>(waiting.await(5 * kMillisecond));
      }
    }
    rank.barrier();
    std::vector<Pending> rest;
    rest.push_back(std::move(pending));
    abandon(rank, *agent, rest);
    rank.check(wrong.empty(), "a wait in " + where + " that a jump of the wall clock cannot change", wrong);
    if (!seen)
      rank.skip("the kernel does not tell in which system call a thread sleeps, or the backend does not sleep");
  }
}

}  // namespace

std::vector<Case> time_clock_cases() {
  return {
      Case("wall-clock-jump", "waits use a monotonic clock", wall_clock_jump),
  };
}

}  // namespace backplane::conformance
