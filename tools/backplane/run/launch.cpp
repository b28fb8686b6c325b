// SPDX-License-Identifier: Apache-2.0
#include "run/launch.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <span>
#include <utility>
#include <vector>

#include "common/failure.hpp"
#include "common/files.hpp"
#include "common/program.hpp"
#include "run/overwritten.hpp"

namespace backplane::tool {

Launch::Launch(const Job& job, const Plan& plan, Signals& signals, Guard& guard, OnRankEnd on_rank_end)
    : job_(job),
      plan_(plan),
      signals_(signals),
      guard_(guard),
      on_rank_end_(std::move(on_rank_end)),
      pmi_(job),
      pmix_(start_pmix(job, plan.pmix)),
      termination_(plan, ranks_, output_) {
  ::clock_gettime(CLOCK_REALTIME_COARSE, &started_);
  raise_descriptor_limit();
}

Launch::~Launch() {
  // At once, so that no rank reports the death of another.
  ranks_.signal(SIGKILL);
  guard_.dismiss();  // before the process group ids become free
  ranks_.clear();
}

int Launch::run() {
  termination_.start();
  for (int i = 0; i < job_.ranks_per_node; ++i) start_rank(i);
  input_.handed_over();
  while (ranks_.running() > 0 || !output_.done()) wait_and_serve();
  return termination_.exit_code();
}

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
  RankOutput::Streams streams;
  if (plan_.prefix) {
    streams = output_.add(number);
    command.descriptors[1] = streams.out.get();
    command.descriptors[2] = streams.err.get();
  }
  const base::Subprocess& process = ranks_.start(number, std::move(command));
  if (!process) fail_system("cannot start a process");
  if (process.exec_error() == 0) return;
  const int code = process.exec_error() == ENOENT ? kNotFound : kNotExecutable;
  throw Failure(code, exec_failure(plan_.path, process.exec_error()));
}

void Launch::wait_and_serve() {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0},
                                ranks_.running() == 0 ? pollfd{-1, 0, 0} : input_.interest(),
                                pmi_.interest()[0],
                                pmi_.interest()[1]};
  const size_t fixed = polled.size();
  output_.add_interest(polled);
  const int timeout = output_.has_unread() ? 0 : base::poll_timeout(termination_.due());
  if (::poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) fail_system("cannot poll");
  if (polled[1].revents != 0) input_.serve();
  if (polled[2].revents != 0 || polled[3].revents != 0) pmi_.serve();
  output_.serve(std::span(polled).subspan(fixed));
  // After the output, so that a rank's last lines precede the report of its end.
  for (const int number : signals_.take()) handle(number);
  termination_.check_deadlines();
}

void Launch::handle(int signal) {
  if (signal == SIGCHLD) return note_ended_ranks();
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return termination_.request(signal);
  ranks_.signal(signal);
  if (signal == SIGTSTP) {
    stop_until_resumed();
    ranks_.signal(SIGCONT);
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

void Launch::note_ended_ranks() {
  ranks_.note_ended([this](int rank, pid_t pid, const siginfo_t& how) {
    if (pmix_) pmix_->rank_ended(rank);
    check_exit(rank, pid, how);
  });
  if (ranks_.running() > 0) return;
  // Ends the processes that ranks left in their groups. After that the pipes get no more data.
  ranks_.signal(SIGKILL);
  output_.finish();
}

void Launch::check_exit(int rank, pid_t pid, const siginfo_t& how) {
  // The other ranks report the failure by the same name.
  const std::string identity = fmt::format("{}, pid {}", host_name(), pid);
  const bool exited = how.si_code == CLD_EXITED;
  std::string what = exited ? fmt::format("exited with code {}", how.si_status)
                            : fmt::format("was killed by signal {} ({}){}", how.si_status, signal_text(how.si_status),
                                          how.si_code == CLD_DUMPED ? ", core dumped" : "");
  if (!exited && (how.si_status == SIGBUS || how.si_status == SIGSEGV)) what += overwritten_plugins(started_);
  if (!exited || how.si_status != 0) {
    termination_.fail(exited ? how.si_status : kSignalled + how.si_status,
                      fmt::format("rank {} ({}) {}", rank, identity, what));
  }
  const bool others_wait = job_.nodes > 1 || (ranks_.running() > 0 && !termination_.begun());
  if (others_wait) on_rank_end_(rank, identity, fmt::format("its process {} before it joined", what));
}

}  // namespace backplane::tool
