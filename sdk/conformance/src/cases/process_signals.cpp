// SPDX-License-Identifier: Apache-2.0
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <thread>

#include "death_after.hpp"
#include "endings.hpp"
#include "groups.hpp"
#include "proc.hpp"
#include "process_traffic.hpp"

extern char** environ;
extern "C" {
__attribute__((weak)) void __tsan_init();
}

namespace backplane::conformance {
namespace {

// Interrupts one thread every 300 microseconds while it lives.
class Storm {
 public:
  Storm() : victim_(pthread_self()) {
    struct sigaction action = {};
    action.sa_handler = [](int) {};  // without SA_RESTART: calls end with EINTR
    sigaction(SIGUSR1, &action, &before_);
    thread_ = std::thread([this] {
      while (!over_.load()) {
        pthread_kill(victim_, SIGUSR1);
        count_.fetch_add(1);
        const timespec pause = {0, 300'000};
        nanosleep(&pause, nullptr);
      }
    });
  }
  ~Storm() {
    over_.store(true);
    thread_.join();
    sigaction(SIGUSR1, &before_, nullptr);
  }
  Storm(const Storm&) = delete;
  Storm& operator=(const Storm&) = delete;

  int count() const { return count_.load(); }

 private:
  const pthread_t victim_;
  struct sigaction before_ = {};
  std::atomic<bool> over_ = false;
  std::atomic<int> count_ = 0;
  std::thread thread_;
};

// Signals come while the caller starts, waits, polls and ends.
void eintr_storm(Rank& rank) {
  rank.barrier();
  {
    const Storm storm;
    auto agent = rank.open();
    for (uint64_t round = 0; round < 400; ++round) {  // rank 0 decides when to end
      rank.step(fmt::format("sending and receiving while signals interrupt every call, round {}", round));
      pass_round(rank, *agent, round, round % 3 == 0 ? 400'000 : 100);
      const std::string key = fmt::format("storm/{}", round);
      if (rank.id() == 0) rank.publish(key, round >= 19 && storm.count() >= 200 ? "enough" : "more");
      if (rank.await_value(key) == "enough") break;
    }
    char byte = 0;
    rank.step("waiting for a deadline while signals interrupt every call");
    bp_op op = recv_op(rank.previous(), 9, &byte, 1);
    op.timeout_ns = rank.scaled(200 * kMillisecond);
    op.flags = BP_OP_SYNC;
    const Nanoseconds begin = now();
    const Outcome outcome = agent->run(op);
    const Nanoseconds took = now() - begin;
    rank.check(outcome.status == BP_TIMEOUT || outcome.status == BP_CANCELLED,
               "a recv without a sender times out, whatever interrupts it", outcome.text());
    rank.check(took >= rank.scaled(190 * kMillisecond), "an interrupted wait does not end before its time",
               fmt::format("it took {} ms instead of {} ms", took / kMillisecond, rank.scaled(200)));
    rank.barrier();
    agent->close();
  }
  rank.barrier();
}

// A rank dies while others send to it, with the default disposition of SIGPIPE.
void sigpipe(Rank& rank) {
  const int32_t victim = rank.size() - 1;
  Deaths deaths(rank, {victim});
  signal(SIGPIPE, SIG_DFL);
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (rank.id() == victim) die(rank, SIGKILL);
  rank.step("sending to a rank that has died");
  const std::vector<char> data(200'000);
  Outcome outcome;
  for (int i = 0; i < 30 && outcome.ok(); ++i) {
    bp_op op = send_op(victim, 2, data.data(), i % 2 == 0 ? 100 : data.size());
    op.timeout_ns = rank.scaled(300 * kMillisecond);
    op.flags = i % 3 == 0 ? static_cast<uint64_t>(BP_OP_SYNC) : 0;
    outcome = agent->run(op);
  }
  deaths.await_loss();
  agent->isend(victim, 2, data.data(), data.size()).finish(rank.scaled(300 * kMillisecond));
  struct sigaction action = {};
  sigaction(SIGPIPE, nullptr, &action);
  rank.check(action.sa_handler == SIG_DFL, "the disposition of SIGPIPE is left alone", "it was changed");
  agent->abort(BP_PEER_LOST, victim, "a rank is lost");
  close_quickly(rank, std::move(agent));
}

// The backend's threads block all signals except those of a thread's own faults.
void signals_blocked(Rank& rank) {
  constexpr std::array kOwnFault = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGKILL, SIGSTOP};
  uint64_t wanted = (UINT64_C(1) << 31) - 1;
  for (const int signal : kOwnFault) wanted &= ~(UINT64_C(1) << (signal - 1));
  const std::set<pid_t> before = threads();
  rank.barrier();
  auto agent = rank.open();
  exchange(rank, *agent, 1, 300'000);
  char byte = 0;
  Pending pending = agent->irecv(rank.previous(), 2, &byte, 1);
  rank.step("looking at the threads that the backend has started");
  for (const pid_t thread : threads()) {
    if (before.count(thread) > 0) continue;
    // A thread that has just been started may still be about to block them.
    const Nanoseconds deadline = now() + rank.scaled(100 * kMillisecond);
    uint64_t open = 0;
    while ((open = wanted & ~blocked_signals(thread)) != 0 && now() < deadline) poll(nullptr, 0, 1);
    int first = 0;
    while (open != 0 && (open >> first & 1) == 0) ++first;
    rank.check(open == 0, "the backend's threads block all signals",
               fmt::format("thread {} does not block {}", thread, strsignal(first + 1)));
  }
  rank.barrier();
  agent->send(rank.next(), 2, "", 1);
  pending.finish(rank.scaled(5 * kSecond));
  rank.barrier();
  agent->close();
}

// Process-wide state that a plugin must not change.
struct ProcessState {
  std::vector<std::string> values;

  ProcessState() {
    for (int number = 1; number < NSIG; ++number) {
      struct sigaction action = {};
      if (sigaction(number, nullptr, &action) != 0) continue;
      add(fmt::format("the handler of {}", strsignal(number)),
          std::to_string(reinterpret_cast<uintptr_t>(action.sa_handler)));
    }
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    std::string mask;
    for (int number = 1; number < NSIG; ++number) mask += sigismember(&blocked, number) == 1 ? '1' : '0';
    add("the caller's signal mask", mask);
    add("the umask", status_text("Umask"));
    std::array<char, PATH_MAX> directory{};
    add("the working directory", getcwd(directory.data(), directory.size()) == nullptr ? "" : directory.data());
    std::string all;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) all += std::string(*entry) + ";";
    add("the environment", all);
    add("the locale", setlocale(LC_ALL, nullptr));
    for (const auto& [name, kind] : {std::pair("descriptors", RLIMIT_NOFILE), std::pair("core files", RLIMIT_CORE),
                                     std::pair("locked memory", RLIMIT_MEMLOCK), std::pair("stack", RLIMIT_STACK)}) {
      rlimit limit = {};
      getrlimit(kind, &limit);
      add(fmt::format("the limit of {}", name), fmt::format("{} of {}", limit.rlim_cur, limit.rlim_max));
    }
    add("the priority", std::to_string(getpriority(PRIO_PROCESS, 0)));
  }

  void add(const std::string& name, const std::string& value) { values.push_back(name + ": " + value); }
};

void manners(Rank& rank) {
  // Ranks of one process must not read the state while others use the backend.
  rank.barrier();
  const ProcessState before;
  rank.barrier();
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  rank.step("comparing the process with its state before init");
  const auto compare = [&rank, &before](const char* when) {
    const ProcessState after;
    for (size_t i = 0; i < before.values.size(); ++i) {
      rank.check(after.values[i] == before.values[i],
                 fmt::format("process state is unchanged {} ({})", when, before.values[i].substr(0, 200)),
                 after.values[i].substr(0, 200));
    }
  };
  compare("by init and messages");
  rank.barrier();
  agent->close();
  rank.barrier();
  compare("by destroy");
  rank.barrier();
}

// All kinds of calls at the same time. ThreadSanitizer reports data races on stderr, which the supervisor reads.
void tsan_clean(Rank& rank) {
  if (__tsan_init == nullptr) rank.skip("not built with ThreadSanitizer");
  auto agent = rank.open();
  const bool tags = rank.has_flag(BP_BACKEND_TAGS);
  rank.step("using one group from several threads under ThreadSanitizer");
  std::atomic<bool> stopped = false;
  std::vector<std::thread> users;
  for (uint64_t i = 0; i < (tags ? 3U : 1U); ++i) {
    users.emplace_back([&rank, &agent, &stopped, i] {
      try {
        for (size_t round = 0; round < 30; ++round) pass_round(rank, *agent, 10 + i, 1 + round * 5000);
      } catch (const BodyEnded&) {
        stopped.store(true);
      }
    });
  }
  for (std::thread& user : users) user.join();
  if (stopped.load()) throw BodyEnded();
  char byte = 0;
  Pending pending = agent->irecv(rank.previous(), 99, &byte, 1);
  rank.barrier();
  std::thread aborter([&agent] { agent->abort(BP_TIMEOUT, -1, "the harness aborts"); });
  const Outcome outcome = pending.finish(rank.scaled(5 * kSecond));
  aborter.join();
  rank.check(!outcome.ok(), "abort ends a recv", outcome.text());
  agent->close();
}

}  // namespace

std::vector<Case> process_signal_cases() {
  const Needs processes = {.processes = true};  // handlers and threads of other ranks are not the backend's
  return {
      Case("eintr-storm", "signals that interrupt system calls lose no message and break no deadline", eintr_storm,
           processes),
      Case("sigpipe", "a peer's death raises no SIGPIPE", sigpipe, {.ranks = 2, .processes = true}),
      Case("signals-blocked", "the backend's threads block all signals", signals_blocked, processes),
      Case("manners", "signal handlers, umask, directory, environment, locale and limits are unchanged", manners),
      Case("tsan-clean", "ThreadSanitizer finds nothing", tsan_clean),
  };
}

}  // namespace backplane::conformance
