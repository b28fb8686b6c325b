// SPDX-License-Identifier: Apache-2.0
#include "supervisor.hpp"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "child_process.hpp"
#include "collector.hpp"
#include "launcher.hpp"
#include "machine_time.hpp"

namespace backplane::conformance {
namespace {

constexpr Nanoseconds kGrace = 1 * kSecond;      // for the other ranks, after one has failed
constexpr Nanoseconds kSkipGrace = 5 * kSecond;  // after one has skipped the case: the others may still be in init
constexpr Nanoseconds kStalled = 1 * kSecond;    // after which a rank that is stopped indefinitely counts as lost

class Supervisor {
 public:
  Supervisor(const Case& which, const Subject& subject, const RunSettings& settings)
      : case_(which),
        settings_(settings),
        world_(World::make(settings.ranks)),
        launcher_(which, subject, settings_, busy_factor_) {}
  ~Supervisor() {
    for (ChildProcess& child : children_) child.kill();
    children_.clear();
    World::free(world_);
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  Outcomes run() {
    const std::string why_not = launcher_.enter_namespaces();
    if (!why_not.empty()) {
      collector_.add_skip(why_not);
    } else if (start()) {
      deadline_ = now() + case_deadline();
      while (!all([](const ChildProcess& child) { return child.is_reaped(); })) turn();
      end_all();
    }
    return collector_.finish();
  }

 private:
  Nanoseconds scaled(Nanoseconds time) const {
    return static_cast<Nanoseconds>(static_cast<double>(time) * settings_.timeout_scale);
  }
  Nanoseconds case_deadline() const {
    return static_cast<Nanoseconds>(static_cast<double>(scaled(case_.deadline)) * busy_factor_);
  }
  template <typename Is>
  bool all(const Is& is) const {
    return std::all_of(children_.begin(), children_.end(), is);
  }

  bool start() {
    try {
      children_ = launcher_.start(*world_);
      return true;
    } catch (const std::runtime_error& e) {
      collector_.add_harness_error(fmt::format("cannot start a rank: {}", e.what()));
      return false;
    }
  }

  // Waits for the next event and handles it.
  void turn() {
    std::vector<pollfd> polled = {{launcher_.pmi_fd(), POLLIN, 0}};
    for (ChildProcess& child : children_) {
      for (const int fd : {child.channel(), child.output(), child.ending()}) polled.push_back({fd, POLLIN, 0});
    }
    const Nanoseconds left = std::clamp<Nanoseconds>(next_event() - now(), 0, 50 * kMillisecond);
    const timespec time = {0, left};
    ppoll(polled.data(), polled.size(), &time, nullptr);
    launcher_.serve_pmi();
    for (ChildProcess& child : children_) {
      listen(child);
      reap(child, base::Deadline::after(0));
    }
    keep_times();
  }

  Nanoseconds next_event() const {
    Nanoseconds next = std::min(deadline_, grace_until_);
    for (const ChildProcess& child : children_) next = std::min(next, child.next_time());
    return next;
  }

  void keep_times() {
    for (ChildProcess& child : children_) {
      if (child.keep_times(*world_)) set_states(child, RankState::kLost);
    }
    // A rank that is stopped indefinitely is ended with the last of the others.
    const bool is_over = all([](const ChildProcess& child) { return child.is_reaped() || child.is_frozen(); });
    if (now() >= deadline_) report_late_ranks();
    if (is_over || now() >= deadline_ || now() >= grace_until_) end_all();
  }

  void report_late_ranks() {
    for (const ChildProcess& child : children_) {
      if (child.is_reaped() || child.done()) continue;
      for (const int32_t member : child.members()) {
        collector_.add_finding(member, fmt::format("the case ends within {} s", case_deadline() / kSecond),
                               "it was still running", world_->step(member));
      }
    }
  }

  void listen(ChildProcess& child) {
    child.read_records([this, &child](const Record& record) { take(child, record); });
    child.read_output([this](std::string_view bytes) { collector_.keep_output(bytes); });
  }

  void take(ChildProcess& child, const Record& record) {
    collector_.take(record);
    switch (record.kind) {
      case Record::kFatal:
      case Record::kHarnessError:
        return begin_grace(kGrace);
      case Record::kSkip:
        return begin_grace(kSkipGrace);
      case Record::kDying:
        return child.announce_death(static_cast<int>(record.number(0)));
      case Record::kFreeze:
        if (record.number(0) < 0) return child.stop_indefinitely(now() + scaled(kStalled));
        return child.stop_until(now() + record.number(0) * kMillisecond, record.text(1));
      case Record::kDone:
        return child.count_done();
      default:
        return;
    }
  }

  void begin_grace(Nanoseconds grace) { grace_until_ = std::min(grace_until_, now() + scaled(grace)); }

  void set_states(const ChildProcess& child, RankState state) {
    for (const int32_t member : child.members()) {
      if (member < settings_.ranks) world_->set_state(member, state);
    }
  }

  void reap(ChildProcess& child, base::Deadline deadline) {
    const std::optional<int> ended = child.reap(deadline);
    if (!ended) return;
    const int status = *ended;
    launcher_.rank_ended(child.first());
    listen(child);
    if (child.was_killed()) return;
    const bool by_signal = WIFSIGNALED(status);
    if (child.died_as_announced(status)) return set_states(child, RankState::kLost);
    if (!by_signal && WEXITSTATUS(status) == 0 && child.done()) return set_states(child, RankState::kDeparted);
    set_states(child, RankState::kLost);
    if (grace_until_ == INT64_MAX || by_signal) report_death(child, status);
    world_->break_barriers();
    begin_grace(kGrace);
  }

  void report_death(const ChildProcess& child, int status) {
    const std::string how = WIFSIGNALED(status) ? "it died of " + base::signal_name(WTERMSIG(status))
                                                : fmt::format("it ended with exit code {}", WEXITSTATUS(status));
    const int32_t member = child.members().size() == 1 ? child.first() : -1;
    // If it is the first to end, the others may have noticed that before.
    collector_.add_finding(member, "the process lives until the case is over", how, world_->step(child.first()),
                           grace_until_ == INT64_MAX ? 0 : now(), true);
  }

  void end_all() {
    for (ChildProcess& child : children_) child.kill();
    for (ChildProcess& child : children_) reap(child, base::Deadline::never());
  }

  const Case& case_;
  const RunSettings settings_;
  const double busy_factor_ = busy_factor();
  World* const world_;
  Launcher launcher_;
  std::vector<ChildProcess> children_;
  Collector collector_;
  Nanoseconds deadline_ = 0;
  Nanoseconds grace_until_ = INT64_MAX;
};

}  // namespace

Outcomes run_case(const Case& which, const Subject& subject, const RunSettings& settings) {
  return Supervisor(which, subject, settings).run();
}

}  // namespace backplane::conformance
