// SPDX-License-Identifier: Apache-2.0
#include "run/launch.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "common/failure.hpp"
#include "common/files.hpp"
#include "common/program.hpp"
#include "run/overwritten.hpp"

namespace backplane::tool {
namespace {

// Some senders repeat a signal at once: coreutils' timeout sends it to the process and to its group.
constexpr int64_t kSameRequestNs = 50'000'000;

double seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Launch::Launch(const Job& job, const Plan& plan, Signals& signals, Guard& guard, OnRankEnd on_rank_end)
    : job_(job),
      plan_(plan),
      signals_(signals),
      guard_(guard),
      on_rank_end_(std::move(on_rank_end)),
      pmi_(job),
      pmix_(start_pmix(job, plan.pmix)) {
  ::clock_gettime(CLOCK_REALTIME_COARSE, &started_);
  raise_descriptor_limit();
}

Launch::~Launch() {
  // At once, so that no rank reports the death of another.
  signal_all(SIGKILL);
  guard_.dismiss();  // before the process group ids become free
  ranks_.clear();
}

int Launch::run() {
  if (plan_.timeout) limit_ = base::Deadline::after(plan_.timeout->count());
  for (int i = 0; i < job_.ranks_per_node; ++i) start_rank(i);
  input_.handed_over();
  while (!done()) wait_and_serve();
  return exit_code_.value_or(0);
}

void Launch::print(const std::string& sentence) { err_.write(this, "", fmt::format("backplane: {}\n", sentence)); }

// A rank has up to three descriptors here: its two streams, and the connection of its MPI.
void Launch::raise_descriptor_limit() {
  if (::getrlimit(RLIMIT_NOFILE, &descriptor_limit_) != 0) fail_system("cannot read the limit of descriptors");
  const rlimit most = {descriptor_limit_.rlim_max, descriptor_limit_.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &most);
}

void Launch::start_rank(int local_rank) {
  const int number = global_rank(job_, local_rank);
  base::Command command;
  command.path = plan_.path;
  command.arguments = plan_.arguments;
  const base::Descriptor pmi = plan_.offers_pmi ? pmi_.connect(local_rank) : base::Descriptor();
  command.environment = rank_environment(job_, local_rank, pmi.get(),
                                         pmix_ ? pmix_->variables(local_rank) : base::PmixServer::Variables());
  command.descriptor_limit = descriptor_limit_;
  if (pmi) command.descriptors[pmi.get()] = pmi.get();
  command.descriptors[0] = number == 0 ? input_.for_rank() : base::Command::kNullDevice;
  command.descriptors[1] = plan_.output;
  if (plan_.inherited >= 0) command.descriptors[plan_.inherited] = plan_.inherited;
  command.signal_mask = signals_.mask_before();
  command.default_sigpipe = signals_.sigpipe_was_default();
  command.announce = guard_.line();
  base::Pipe out;
  base::Pipe err;
  if (plan_.prefix) {
    out = make_pipe();
    err = make_pipe();
    command.descriptors[1] = out.write.get();
    command.descriptors[2] = err.write.get();
  }
  ranks_.push_back({number, base::Subprocess::spawn(std::move(command))});
  const base::Subprocess& process = ranks_.back().process;
  if (!process) fail_system("cannot start a process");
  if (process.exec_error() != 0) {
    const int code = process.exec_error() == ENOENT ? kNotFound : kNotExecutable;
    throw Failure(code, exec_failure(plan_.path, process.exec_error()));
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
                                running_ == 0 ? pollfd{-1, 0, 0} : input_.interest(),
                                pmi_.interest()[0],
                                pmi_.interest()[1]};
  constexpr size_t kFixed = 6;
  for (const LineRelay& relay : relays_) polled.push_back({relay.ready() ? relay.fd() : -1, POLLIN, 0});
  const bool unread =
      running_ == 0 && std::any_of(relays_.begin(), relays_.end(), [](const LineRelay& r) { return r.ready(); });
  const int timeout = unread ? 0 : base::poll_timeout(std::min(limit_, kill_at_));
  if (::poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) fail_system("cannot poll");
  // The streams of ended ranks are read without polling.
  const auto happened = [&polled](size_t i) { return polled[i].revents != 0; };
  if (happened(1)) out_.flush_some();
  if (happened(2)) err_.flush_some();
  if (happened(3)) input_.serve();
  if (happened(4) || happened(5)) pmi_.serve();
  for (size_t i = 0; i < relays_.size(); ++i) {
    const bool ending = running_ == 0 && relays_[i].ready();
    if (happened(kFixed + i) || ending) relays_[i].read();
  }
  // After the output, so that a rank's last lines precede the report of its end.
  for (const int number : signals_.take()) handle(number);
  check_deadlines();
}

void Launch::check_deadlines() {
  if (limit_.passed()) {
    limit_ = base::Deadline::never();
    if (running_ != 0) begin_end(kTimedOut, fmt::format("the job did not end within {} s", seconds(*plan_.timeout)));
  }
  if (kill_at_.passed()) {
    kill_at_ = base::Deadline::never();
    if (running_ != 0) kill_all(fmt::format("{} ranks did not end within {} s", running_, seconds(plan_.grace)));
  }
}

void Launch::handle(int signal) {
  if (signal == SIGCHLD) {
    note_ended_ranks();
    return;
  }
  const bool asks_to_end = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
  if (asks_to_end && forwarded_end_) {
    if (!second_signal_from_.passed()) return;
    kill_all("asked twice to end");
    // Does not wait for a stalled reader of the output.
    if (running_ == 0) throw Failure(kSignalled + signal, "interrupted");
    return;
  }
  signal_all(signal);
  if (asks_to_end) {
    forwarded_end_ = true;
    second_signal_from_ = base::Deadline::after(kSameRequestNs);
    kill_at_ = std::min(kill_at_, base::Deadline::after(plan_.grace.count()));
    signal_all(SIGCONT);  // a stopped process does not end
  }
  if (signal == SIGTSTP) {
    stop_until_resumed();
    signal_all(SIGCONT);
  }
}

// The store in this process stops with the ranks, so that it does not take silent ranks for lost. The kernel decides
// whether there is a shell that can resume the job; if not, this returns at once.
void Launch::stop_until_resumed() {
  sigset_t only{};
  ::sigemptyset(&only);
  ::sigaddset(&only, SIGTSTP);
  ::raise(SIGTSTP);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::pthread_sigmask(SIG_BLOCK, &only, nullptr);
}

void Launch::kill_all(const std::string& why) {
  if (running_ > 0) print(fmt::format("{}: killing {}", why, running_ == 1 ? "the last rank" : "all ranks"));
  signal_all(SIGKILL);
}

void Launch::note_ended_ranks() {
  for (Rank& rank : ranks_) {
    const std::optional<siginfo_t> how = rank.ended ? std::nullopt : rank.process.end();
    if (!how) continue;
    rank.ended = true;
    --running_;
    if (pmix_) pmix_->rank_ended(rank.number);
    check_exit(rank, *how);
  }
  if (running_ == 0) finish_outputs();
}

void Launch::check_exit(const Rank& rank, const siginfo_t& how) {
  // The other ranks report the failure by the same name.
  const std::string identity = fmt::format("{}, pid {}", host_name(), rank.process.pid());
  const bool exited = how.si_code == CLD_EXITED;
  std::string what = exited ? fmt::format("exited with code {}", how.si_status)
                            : fmt::format("was killed by signal {} ({}){}", how.si_status, signal_text(how.si_status),
                                          how.si_code == CLD_DUMPED ? ", core dumped" : "");
  if (!exited && (how.si_status == SIGBUS || how.si_status == SIGSEGV)) what += overwritten_plugins(started_);
  if (!exited || how.si_status != 0) {
    begin_end(exited ? how.si_status : kSignalled + how.si_status,
              fmt::format("rank {} ({}) {}", rank.number, identity, what));
  }
  const bool others_wait = job_.nodes > 1 || (running_ > 0 && !ending_);
  if (others_wait) on_rank_end_(rank.number, identity, fmt::format("its process {} before it joined", what));
}

void Launch::begin_end(int exit_code, const std::string& why) {
  if (ending_) return;  // later failures are consequences of the first
  exit_code_ = exit_code_.value_or(exit_code);
  ending_ = !plan_.keep_going || exit_code == kTimedOut;
  if (!ending_) return print(why);
  print(running_ == 0 ? why : fmt::format("{}; ending the other ranks", why));
  kill_at_ = std::min(kill_at_, base::Deadline::after(plan_.grace.count()));
  // Ranks that got a forwarded signal already are ending.
  if (!forwarded_end_ || exit_code == kTimedOut) signal_all(SIGTERM);
  signal_all(SIGCONT);
}

void Launch::finish_outputs() {
  // Ends the processes that ranks left in their groups. After that the pipes get no more data.
  signal_all(SIGKILL);
  for (LineRelay& relay : relays_) relay.finish();
}

void Launch::signal_all(int signal) const {
  for (const Rank& rank : ranks_) rank.process.signal(signal);
}

}  // namespace backplane::tool
