// SPDX-License-Identifier: Apache-2.0
#include "run/termination.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "common/failure.hpp"

namespace backplane::tool {
namespace {

// Some senders repeat a signal at once: coreutils' timeout sends it to the process and to its group.
constexpr int64_t kSameRequestNs = 50'000'000;

double seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Termination::Termination(const Plan& plan, const RankProcesses& ranks, RankOutput& output)
    : plan_(plan), ranks_(ranks), output_(output) {}

void Termination::start() {
  if (plan_.timeout) limit_ = base::Deadline::after(plan_.timeout->count());
}

void Termination::fail(int exit_code, const std::string& why) {
  if (begun_) return;  // later failures are consequences of the first
  exit_code_ = exit_code_.value_or(exit_code);
  begun_ = !plan_.keep_going || exit_code == kTimedOut;
  if (!begun_) return output_.print(why);
  output_.print(ranks_.running() == 0 ? why : fmt::format("{}; ending the other ranks", why));
  begin_grace();
  // Ranks that got a forwarded signal already are ending.
  if (!requested_ || exit_code == kTimedOut) ranks_.signal(SIGTERM);
  ranks_.signal(SIGCONT);
}

void Termination::request(int signal) {
  if (!requested_) {
    requested_ = true;
    second_request_from_ = base::Deadline::after(kSameRequestNs);
    begin_grace();
    ranks_.signal(signal);
    ranks_.signal(SIGCONT);  // a stopped process does not end
    return;
  }
  if (!second_request_from_.passed()) return;
  kill_all("asked twice to end");
  // Does not wait for a stalled reader of the output.
  if (ranks_.running() == 0) throw Failure(kSignalled + signal, "interrupted");
}

void Termination::check_deadlines() {
  const int running = ranks_.running();
  if (limit_.passed()) {
    limit_ = base::Deadline::never();
    if (running != 0) fail(kTimedOut, fmt::format("the job did not end within {} s", seconds(*plan_.timeout)));
  }
  if (kill_at_.passed()) {
    kill_at_ = base::Deadline::never();
    if (running != 0) kill_all(fmt::format("{} ranks did not end within {} s", running, seconds(plan_.grace)));
  }
}

void Termination::begin_grace() { kill_at_ = std::min(kill_at_, base::Deadline::after(plan_.grace.count())); }

void Termination::kill_all(const std::string& why) {
  const int running = ranks_.running();
  if (running > 0) output_.print(fmt::format("{}: killing {}", why, running == 1 ? "the last rank" : "all ranks"));
  ranks_.signal(SIGKILL);
}

}  // namespace backplane::tool
