// SPDX-License-Identifier: Apache-2.0
//
// Runs a function on several ranks of this machine and collects their results. `backplane run` does the same for whole
// programs. Linux only.
//
//     auto results = backplane::launch(4, [](backplane::ProcessGroup& group) {
//       int sum = group.rank();
//       group.all_reduce(backplane::as_buffer(sum));
//       return std::to_string(sum);
//     });
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "backplane/distributed.hpp"

namespace backplane {

struct LaunchOptions {
  std::string backend = {};                 // as in GroupOptions; empty: BACKPLANE_BACKEND, else auto
  Timeout timeout = kNoTimeout;             // of the whole call; after it all ranks are ended
  Timeout grace = std::chrono::seconds(5);  // between SIGTERM and SIGKILL
};

// The function that runs on each rank, with the rank's default group. Returns any bytes, or nothing.
using RankFunction = std::function<std::optional<std::string>(ProcessGroup& group)>;
// Results in rank order. Empty for a rank that returned nothing or called exit(0).
using RankResults = std::vector<std::optional<std::string>>;

namespace detail {

[[noreturn]] inline void fail_launch(const char* what) {
  const std::string why = std::generic_category().message(errno);
  fail(Status::kResource, std::string("launch: cannot ") + what + ": " + why);
}

using base::Descriptor;

// {read, write}
inline std::pair<Descriptor, Descriptor> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_launch("make a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

inline void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return;  // the reader has closed
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
}

// The ranks, as child processes. They end with this process.
class Launcher {
 public:
  Launcher(int ranks, const RankFunction& function, LaunchOptions options) : options_(std::move(options)) {
    if (ranks < 1) fail(Status::kInvalid, "launch needs at least one rank, not " + std::to_string(ranks));
    const std::filesystem::directory_iterator threads("/proc/self/task");
    if (std::distance(begin(threads), end(threads)) > 1) {
      fail(Status::kInvalid,
           "launch copies this process, which is safe only while it has one thread; call it before "
           "others are started, or use `backplane run`");
    }
    std::fflush(nullptr);  // so that buffered text is written once
    try {
      for (int rank = 0; rank < ranks; ++rank) fork_rank(rank, ranks, function);
    } catch (...) {
      end_all();
      throw;
    }
  }
  ~Launcher() { end_all(); }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  RankResults run() {
    const StoreServer server("127.0.0.1", 0, job_id_);  // starts threads, so after the forks
    for (Child& child : children_) {
      write_all(child.start.second.get(), std::to_string(server.port()));
      child.start = {};
    }
    if (options_.timeout != kNoTimeout) limit_ = Clock::now() + options_.timeout;
    while (running_ > 0) wait_and_read();
    if (failure_) throw Error(*failure_);
    return results();
  }

 private:
  using Clock = std::chrono::steady_clock;
  // A rank reports one of these characters, followed by bytes.
  static constexpr char kReturned = 'r';
  static constexpr char kNothing = 'n';
  static constexpr char kThrew = 't';
  static constexpr char kLost = 'l';  // it threw Status::kPeerLost
  // The time in which the failure of that peer may follow.
  static constexpr std::chrono::seconds kCauseTime{2};
  // Between looks at a rank without a pidfd.
  static constexpr std::chrono::milliseconds kLookTime{20};

  struct Child {
    int rank = -1;
    pid_t pid = -1;
    Descriptor process;  // readable when it has ended; -1 where pidfd_open is not permitted (seccomp, old kernels)
    std::pair<Descriptor, Descriptor>
        start;  // carries the store's port; the parent keeps the reading end open, which avoids SIGPIPE
    Descriptor report_pipe;
    std::string report = {};
    bool ended = false;
  };

  void fork_rank(int rank, int ranks, const RankFunction& function) {
    auto start = make_pipe();
    auto report = make_pipe();
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) fail_launch("start a rank");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      start.second.reset();
      for (Child& earlier : children_) earlier = Child();
      set_environment(rank, ranks, start.first.get());
      run_function(function, report.second.get());
    }
    ++running_;
    children_.push_back({rank, pid, Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))), std::move(start),
                         std::move(report.first)});
  }

  // Runs in the child.
  void set_environment(int rank, int ranks, int start) const {
    std::array<char, 16> port{};
    if (::read(start, port.data(), port.size() - 1) <= 0) ::_exit(1);  // the parent failed
    const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", port.data());
    set("RANK", std::to_string(rank));
    set("WORLD_SIZE", std::to_string(ranks));
    set("LOCAL_RANK", std::to_string(rank));
    set("LOCAL_WORLD_SIZE", std::to_string(ranks));
    set("BACKPLANE_STORE_HOSTED", "1");
    set("BACKPLANE_JOB_ID", job_id_);
    if (!options_.backend.empty()) set("BACKPLANE_BACKEND", options_.backend);
    for (const char* const name :
         {"BACKPLANE_STORE", "PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_NAMESPACE", "PMIX_RANK", "JSM_JSRUN_PORT"}) {
      ::unsetenv(name);  // of the parent's launcher
    }
  }
  [[noreturn]] static void run_function(const RankFunction& function, int report) {
    int code = 0;
    std::string end(1, kThrew);
    try {
      std::optional<std::string> result;
      {
        ProcessGroup group = init_process_group();
        result = function(group);
      }
      if (is_initialized()) destroy_process_group();
      end = result ? kReturned + *result : std::string(1, kNothing);
    } catch (const Error& e) {
      if (e.status() == Status::kPeerLost) end = kLost;
      end += e.what();
      code = 1;
    } catch (const std::exception& e) {
      end += e.what();
      code = 1;
    } catch (...) {
      end += "an exception of unknown type";
      code = 1;
    }
    std::fflush(nullptr);
    write_all(report, end);
    ::_exit(code);  // runs no destructor of the parent's objects
  }

  void wait_and_read() {
    std::vector<pollfd> polled;
    for (const Child& child : children_) {
      polled.push_back({child.ended ? -1 : child.report_pipe.get(), POLLIN, 0});
      polled.push_back({child.ended ? -1 : child.process.get(), POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), time_left()) < 0 && errno != EINTR) fail_launch("wait for the ranks");
    for (size_t i = 0; i < children_.size(); ++i) {
      const bool over = has_ended(children_[i], polled[2 * i + 1].revents);
      if (over || polled[2 * i].revents != 0) read_report(&children_[i], over);
      if (over) reap(&children_[i]);
    }
    if (running_ > 0 && limit_ && Clock::now() >= *limit_) {
      limit_.reset();
      if (!failure_) fail_with(Status::kTimeout, -1, "launch: the ranks did not end in time");
    }
    if (end_at_ && Clock::now() >= *end_at_) begin_end();
    if (kill_at_ && Clock::now() >= *kill_at_) signal_all(SIGKILL);
  }
  static bool has_ended(const Child& child, int revents) {
    if (child.ended || child.process) return revents != 0;
    siginfo_t how{};
    const auto pid = static_cast<id_t>(child.pid);
    if (::waitid(P_PID, pid, &how, WEXITED | WNOHANG | WNOWAIT) != 0) return errno == ECHILD;
    return how.si_pid == child.pid;
  }
  int time_left() const {
    auto next = Clock::time_point::max();
    for (const auto& each : {limit_, end_at_, kill_at_}) next = std::min(next, each.value_or(next));
    const auto is_unwatched = [](const Child& child) { return !child.ended && !child.process; };
    if (std::any_of(children_.begin(), children_.end(), is_unwatched)) next = std::min(next, Clock::now() + kLookTime);
    if (next == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
  }
  // `all`: reads to the end, because the writer has ended.
  static void read_report(Child* child, bool all) {
    std::array<char, 65536> bytes{};
    do {
      pollfd there = {child->report_pipe.get(), POLLIN, 0};
      if (::poll(&there, 1, 0) <= 0) return;
      const ssize_t got = ::read(child->report_pipe.get(), bytes.data(), bytes.size());
      if (got == 0) child->report_pipe.reset();
      if (got <= 0) return;
      child->report.append(bytes.data(), static_cast<size_t>(got));
    } while (all);
  }
  void reap(Child* child) {
    int status = 0;
    const bool is_known = ::waitpid(child->pid, &status, 0) == child->pid;
    child->ended = true;
    --running_;
    const std::string who = "rank " + std::to_string(child->rank) + " (pid " + std::to_string(child->pid) + ") ";
    const char kind = child->report.empty() ? '\0' : child->report[0];
    if (WIFSIGNALED(status)) {
      fail_with(
          Status::kPeerLost, child->rank,
          who + "was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")");
    } else if (kind == kThrew || kind == kLost) {
      fail_with(Status::kCancelled, child->rank, who + "failed: " + child->report.substr(1), kind == kLost);
    } else if (!is_known && kind == '\0') {
      fail_with(Status::kPeerLost, child->rank,
                who + "ended without a result; SIGCHLD is ignored or another thread waited for it, which hides how");
    } else if (WEXITSTATUS(status) != 0) {
      fail_with(Status::kPeerLost, child->rank, who + "exited with code " + std::to_string(WEXITSTATUS(status)));
    }
  }
  // Keeps the first failure. One that `follows` from the loss of a peer is replaced by another that comes before the
  // ranks are ended.
  void fail_with(Status status, int rank, const std::string& why, bool follows = false) {
    if (failure_ && (follows || !end_at_)) return;
    bp_error err;
    bp_error_init(&err);
    bp_error_set(&err, static_cast<int32_t>(status), 0, rank, why.c_str());
    failure_.emplace(err);
    if (follows) {
      end_at_ = Clock::now() + kCauseTime;
    } else {
      begin_end();
    }
  }
  void begin_end() {
    end_at_.reset();
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped process does not handle SIGTERM
    kill_at_ = Clock::now() + options_.grace;
  }
  void signal_all(int number) const {
    for (const Child& child : children_) {
      if (!child.ended) ::kill(child.pid, number);
    }
  }
  void end_all() {
    signal_all(SIGKILL);
    for (Child& child : children_) {
      if (!std::exchange(child.ended, true)) ::waitpid(child.pid, nullptr, 0);
    }
  }
  RankResults results() const {
    RankResults results;
    for (const Child& child : children_) {
      const bool returned = !child.report.empty() && child.report[0] == kReturned;
      results.push_back(returned ? std::optional(child.report.substr(1)) : std::nullopt);
      if (!returned) std::fprintf(stderr, "backplane: launch: rank %d returned nothing\n", child.rank);
    }
    return results;
  }

  const LaunchOptions options_;
  const std::string job_id_ = "launch-" + std::to_string(::getpid());
  std::vector<Child> children_;
  size_t running_ = 0;
  std::optional<Error> failure_;
  std::optional<Clock::time_point> limit_;
  std::optional<Clock::time_point> end_at_;  // set while another failure may replace this one
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace detail

// Runs `function` on `ranks` child processes, which are copies of this one, and blocks until they have ended. Returns
// their results in rank order, and prints a line to stderr for each rank without one.
//
// The first failure ends all other ranks and is thrown; Error::peer_rank names the rank. Status::kCancelled: the
// function threw, and the text is its exception's. Status::kPeerLost: the rank was killed or exited with a code other
// than 0. Status::kTimeout: options.timeout passed. A function that throws Status::kPeerLost is reported only if no
// other failure follows within 2 s. Status::kInvalid if this process has more than one thread, because locks that other
// threads hold would stay locked in the copies. All ranks end with this process, also if it is killed.
inline RankResults launch(int ranks, const RankFunction& function, const LaunchOptions& options = {}) {
  return detail::Launcher(ranks, function, options).run();
}

}  // namespace backplane
