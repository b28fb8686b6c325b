// SPDX-License-Identifier: Apache-2.0
#include "run/launch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "common/failure.hpp"
#include "common/files.hpp"
#include "common/program.hpp"

namespace backplane::tool {
namespace {

double seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Launch::Launch(const Job& job, const Plan& plan, Signals& signals, Guard& guard)
    : job_(job), plan_(plan), signals_(signals), guard_(guard), null_(open_null_device()) {}

Launch::~Launch() {
  // At once, so that no rank reports the death of another.
  signal_all(SIGKILL);
  guard_.dismiss();  // before the process group ids become free
  for (const Rank& rank : ranks_) reap(rank.pid);
}

int Launch::run() {
  if (plan_.timeout) limit_ = Clock::now() + *plan_.timeout;
  for (int i = 0; i < job_.ranks_per_node; ++i) start_rank(i);
  input_.handed_over();
  while (!done()) wait_and_serve();
  return exit_code_.value_or(0);
}

void Launch::print(const std::string& sentence) { err_.write(this, "", fmt::format("backplane: {}\n", sentence)); }

void Launch::start_rank(int local_rank) {
  const int number = global_rank(job_, local_rank);
  Child child;
  child.path = plan_.path;
  child.arguments = plan_.arguments;
  child.environment = rank_environment(job_, local_rank);
  child.input = number == 0 ? input_.for_rank() : null_.get();
  child.signal_mask = signals_.mask_before();
  child.default_sigpipe = signals_.sigpipe_was_default();
  child.inherited = plan_.inherited;
  child.announce = guard_.line();
  child.output = plan_.output;
  Pipe out;
  Pipe err;
  if (plan_.prefix) {
    out = make_pipe();
    err = make_pipe();
    child.output = out.write.get();
    child.error = err.write.get();
  }
  const Started started = start(child);
  ranks_.push_back({number, started.pid});
  if (started.exec_errno != 0) {
    const int code = started.exec_errno == ENOENT ? kNotFound : kNotExecutable;
    throw Failure(code, exec_failure(plan_.path, started.exec_errno));
  }
  ++running_;
  if (!plan_.prefix) return;
  relays_.emplace_back(std::move(out.read), out_, number);
  relays_.emplace_back(std::move(err.read), err_, number);
}

bool Launch::done() const {
  const bool silent = std::none_of(relays_.begin(), relays_.end(), [](const LineRelay& r) { return r.open(); });
  return running_ == 0 && silent && out_.empty() && err_.empty();
}

void Launch::wait_and_serve() {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0},
                                {out_.empty() ? -1 : out_.fd(), POLLOUT, 0},
                                {err_.empty() ? -1 : err_.fd(), POLLOUT, 0},
                                running_ == 0 ? pollfd{-1, 0, 0} : input_.interest()};
  constexpr size_t kFixed = 4;
  for (const LineRelay& relay : relays_) polled.push_back({relay.ready() ? relay.fd() : -1, POLLIN, 0});
  if (::poll(polled.data(), polled.size(), poll_timeout()) < 0 && errno != EINTR) fail_system("cannot poll");
  // The streams of ended ranks are read without polling.
  const auto happened = [&polled](size_t i) { return polled[i].revents != 0; };
  if (happened(1)) out_.flush_some();
  if (happened(2)) err_.flush_some();
  if (happened(3)) input_.serve();
  for (size_t i = 0; i < relays_.size(); ++i) {
    const bool ending = running_ == 0 && relays_[i].ready();
    if (happened(kFixed + i) || ending) relays_[i].read();
  }
  // After the output, so that a rank's last lines precede the report of its end.
  for (const int number : signals_.take()) handle(number);
  check_deadlines();
}

int Launch::poll_timeout() const {
  if (running_ == 0 && std::any_of(relays_.begin(), relays_.end(), [](const LineRelay& r) { return r.ready(); })) {
    return 0;
  }
  auto next = Clock::time_point::max();
  for (const auto& deadline : {limit_, kill_at_}) next = std::min(next, deadline.value_or(next));
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
}

void Launch::check_deadlines() {
  const auto now = Clock::now();
  if (limit_ && now >= *limit_) {
    limit_.reset();
    if (running_ != 0) begin_end(kTimedOut, fmt::format("the job did not end within {} s", seconds(*plan_.timeout)));
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    if (running_ != 0) signal_all(SIGKILL);
  }
}

void Launch::handle(int signal) {
  if (signal == SIGCHLD) {
    note_ended_ranks();
    return;
  }
  if (signal == SIGINT && ++interrupts_ > 1) {
    print("interrupted twice: killing all ranks");
    signal_all(SIGKILL);
    // Does not wait for a stalled reader of the output.
    if (running_ == 0) throw Failure(kSignalled + SIGINT, "interrupted");
    return;
  }
  forwarded_end_ = forwarded_end_ || signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
  signal_all(signal);
}

void Launch::note_ended_ranks() {
  for (Rank& rank : ranks_) {
    siginfo_t how{};
    const bool ended = !rank.ended &&
                       ::waitid(P_PID, static_cast<id_t>(rank.pid), &how, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                       how.si_pid == rank.pid;
    if (!ended) continue;
    rank.ended = true;
    --running_;
    check_exit(rank, how);
  }
  if (running_ == 0) finish_outputs();
}

void Launch::check_exit(const Rank& rank, const siginfo_t& how) {
  // The other ranks report the failure by the same name.
  const std::string who = fmt::format("rank {} ({}, pid {})", rank.number, host_name(), rank.pid);
  if (how.si_code != CLD_EXITED) {
    begin_end(kSignalled + how.si_status,
              fmt::format("{} was killed by signal {} ({}){}", who, how.si_status, signal_text(how.si_status),
                          how.si_code == CLD_DUMPED ? ", core dumped" : ""));
  } else if (how.si_status != 0) {
    begin_end(how.si_status, fmt::format("{} exited with code {}", who, how.si_status));
  }
}

void Launch::begin_end(int exit_code, const std::string& why) {
  if (ending_) return;  // later failures are consequences of the first
  exit_code_ = exit_code_.value_or(exit_code);
  ending_ = !plan_.keep_going || exit_code == kTimedOut;
  if (!ending_) return print(why);
  print(running_ == 0 ? why : fmt::format("{}; ending the other ranks", why));
  kill_at_ = Clock::now() + plan_.grace;
  // Ranks that got a forwarded signal already are ending.
  if (!forwarded_end_ || exit_code == kTimedOut) signal_all(SIGTERM);
  signal_all(SIGCONT);  // a stopped process gets no SIGTERM
}

void Launch::finish_outputs() {
  // Ends the processes that ranks left in their groups. After that the pipes get no more data.
  signal_all(SIGKILL);
  for (LineRelay& relay : relays_) relay.finish();
}

void Launch::signal_all(int signal) const {
  for (const Rank& rank : ranks_) ::kill(-rank.pid, signal);
}

}  // namespace backplane::tool
