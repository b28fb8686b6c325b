// SPDX-License-Identifier: Apache-2.0
//
// Group `init`: a rank that stands still at any step of its init, while the host of another one asks it to give up.
#include <functional>
#include <thread>

#include "groups.hpp"
#include "init_groups.hpp"
#include "init_raw.hpp"

namespace backplane::conformance::init {
namespace {

constexpr int kMostSteps = 12;
constexpr Nanoseconds kInitLimit = 3 * kSecond;

// An init on a thread of its own.
class Starting {
 public:
  explicit Starting(RawInit& raw)
      : raw_(raw), thread_([this] {
          outcome_ = raw_.run();
          returned_.store(true);
        }) {}
  ~Starting() {
    raw_.request_abort();
    raw_.release();
    join();
  }
  Starting(const Starting&) = delete;
  Starting& operator=(const Starting&) = delete;

  bool returned() const { return returned_.load(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  const Outcome& outcome() const { return outcome_; }

 private:
  RawInit& raw_;
  Outcome outcome_;
  std::atomic<bool> returned_ = false;
  std::thread thread_;
};

// Waits at most `time` for the condition. A key that is never set lets other processes run.
void await(Rank& rank, Nanoseconds time, const std::function<bool()>& condition) {
  std::string word;
  rank.world().get("harness/never", word, time, condition);
}

// Stands still at a call of the store until the other rank has ended its init. False: init has no such call.
bool stand_still(Rank& rank, const std::string& space, int call) {
  RawInit raw(rank, space, rank.id(), rank.size(), rank.scaled(kInitLimit));
  raw.stop_at_call(call);
  rank.step(fmt::format("in init, standing still before call {} of the store", call));
  Starting starting(raw);
  await(rank, rank.scaled(2 * kInitLimit), [&] { return raw.stopped() || starting.returned(); });
  const bool stopped = raw.stopped();
  rank.publish(space, stopped ? "stands still" : "passed");
  if (stopped) rank.await_value(space + "/ended");
  raw.request_abort();
  raw.release();
  starting.join();
  const Outcome& outcome = starting.outcome();
  rank.check(stopped || outcome.ok(), "init of two ranks succeeds", outcome.text());
  if (!stopped) rank.await_value(space + "/ended");
  raw.close();
  return stopped;
}

// Is asked to give up while the other rank stands still.
void give_up(Rank& rank, const std::string& space, int call) {
  RawInit raw(rank, space, rank.id(), rank.size(), rank.scaled(kInitLimit));
  rank.step(fmt::format("in init, the other rank before call {} of the store", call));
  Starting starting(raw);
  if (rank.await_value(space) == "stands still") {
    await(rank, rank.scaled(2 * kSecond), [&] { return raw.waits() || starting.returned(); });
    await(rank, 50 * kMillisecond, [&] { return starting.returned(); });
    rank.step(fmt::format("in init, to be aborted, the other rank before call {} of the store", call));
    const Stopwatch watch;
    raw.request_abort();
    starting.join();
    rank.check_time(watch.took(), rank.scaled(kSecond / 2), "the host's request to abort ends init");
    const Outcome& outcome = starting.outcome();
    rank.check(outcome.ok() || outcome.status == BP_CANCELLED, "BP_CANCELLED, or success if init was done already",
               outcome.text());
  }
  starting.join();
  rank.publish(space + "/ended", "");
  raw.close();
}

void abort_at_each_step(Rank& rank) {
  for (int32_t standing = 0; standing < rank.size(); ++standing) {
    bool more = true;
    for (int call = 1; more && call <= kMostSteps; ++call) {
      const std::string space = fmt::format("steps/{}/{}", standing, call);
      if (rank.id() == standing) {
        more = stand_still(rank, space, call);
        rank.publish(space + "/more", more ? "yes" : "no");
      } else {
        give_up(rank, space, call);
        more = rank.await_value(space + "/more") == "yes";
      }
      rank.barrier();
    }
    if (more)
      rank.skip(fmt::format("init makes more than {} calls of the store; the later ones were not tried", kMostSteps));
  }
}

}  // namespace

std::vector<Case> step_cases() {
  return {Case("abort-at-each-step",
               "an init that waits for a rank ends within 500 ms of the host's request, whatever step that rank has "
               "reached",
               abort_at_each_step, {.without = BP_BACKEND_ONE_WORLD | BP_BACKEND_BLOCKING_INIT, .ranks = 2},
               {.worlds = {2}})};
}

}  // namespace backplane::conformance::init
