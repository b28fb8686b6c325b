// SPDX-License-Identifier: Apache-2.0
//
// A backend in a process with its own threads, forks, signals and settings.
#include "process_signals.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "backplane/base/pipe.hpp"
#include "death_after.hpp"
#include "proc.hpp"
#include "process_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr int kThreads = 4;

// Runs the function on threads of its own, and leaves the body if one of them does.
void on_threads(int count, const std::function<void(int)>& run) {
  std::atomic<bool> stopped = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&run, &stopped, i] {
      try {
        run(i);
      } catch (const BodyEnded&) {
        stopped.store(true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (stopped.load()) throw BodyEnded();
}

Plan numbered(const char* name, int i) {
  Plan plan;
  plan.space = say(name, "/", i);
  return plan;
}

// Several groups start at once in every process, in no particular order.
void concurrent_init(Rank& rank) {
  rank.step("starting four groups at once from four threads");
  for (int round = 0; round < 3; ++round) {
    on_threads(kThreads, [&rank, round](int i) {
      auto agent = rank.open(numbered("at-once", round * kThreads + i));
      exchange(rank, *agent, static_cast<uint64_t>(i), 2000);
      agent->close();
    });
    rank.barrier();
  }
}

void concurrent_groups(Rank& rank) {
  std::vector<std::unique_ptr<Agent>> agents;
  for (int i = 0; i < 3; ++i) agents.push_back(rank.open(numbered("beside", i)));
  rank.step("using three groups at once from three threads");
  on_threads(3, [&rank, &agents](int i) {
    for (uint64_t round = 0; round < 20; ++round) {
      pass_round(rank, *agents[static_cast<size_t>(i)], round % 3, 100 + 20'000 * (round % 4));
    }
  });
  rank.barrier();
  for (auto& agent : agents) agent->close();
}

// Several threads use one group; each has its own tag if there are tags, else its own peer's turn.
void one_group_many_threads(Rank& rank) {
  if (!rank.has_flag(BP_BACKEND_TAGS)) rank.skip("without tags the messages of several threads cannot be told apart");
  auto agent = rank.open();
  rank.step("using one group from four threads");
  on_threads(kThreads, [&rank, &agent](int i) {
    for (int round = 0; round < 20; ++round) {
      pass_round(rank, *agent, static_cast<uint64_t>(100 + i), 1 + static_cast<size_t>(round) * 700);
    }
  });
  rank.barrier();
  agent->close();
}

// One thread submits, another waits, a third releases and destroys.
void any_thread_calls(Rank& rank) {
  std::unique_ptr<Agent> agent;
  const auto elsewhere = [](const std::function<void()>& run) { on_threads(1, [&run](int) { run(); }); };
  elsewhere([&] { agent = rank.open(); });
  rank.step("submitting on one thread and waiting on another");
  for (uint64_t round = 0; round < 10; ++round) {
    const size_t bytes = round % 2 == 0 ? 10 : 200'000;
    std::vector<char> in(bytes);
    const std::vector<char> out = payload(rank.id(), rank.next(), round, bytes);
    Pending receiving;
    Pending sending;
    elsewhere([&] { receiving = agent->irecv(rank.previous(), round, in.data(), bytes); });
    elsewhere([&] { sending = agent->isend(rank.next(), round, out.data(), bytes); });
    Outcome received;
    elsewhere([&] { received = receiving.wait(rank.scaled(10 * kSecond)); });
    rank.require_ok(received, "a recv that another thread waits for");
    elsewhere([&] { receiving.release(); });
    rank.require_ok(sending.finish(rank.scaled(10 * kSecond)), "a send that another thread has submitted");
    rank.require(in == payload(rank.previous(), rank.id(), round, bytes), "the bytes that were sent", "others");
  }
  rank.barrier();
  elsewhere([&] { agent->close(); });
}

// A child that touches nothing and ends: what it inherited must not be shut down with it.
void fork_child(Rank& rank) {
  auto agent = rank.open();
  exchange(rank, *agent, 1, 10'000);
  std::vector<char> in(100'000);
  Pending receiving = agent->irecv(rank.previous(), 2, in.data(), in.size());
  rank.step("forking a child that does nothing");
  base::Pipe pipe = base::Pipe::open();
  if (!pipe) rank.harness_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    pipe.write.reset();
    while (read(pipe.read.get(), &byte, 1) < 0) {
    }
    _exit(0);
  }
  if (child < 0) rank.harness_error("no process");
  pipe.read.reset();
  rank.step("using a group while a forked child lives");
  const std::vector<char> out = payload(rank.id(), rank.next(), 2, in.size());
  rank.require_ok(agent->send(rank.next(), 2, out.data(), out.size()), "a send beside a forked child");
  rank.require_ok(receiving.finish(rank.scaled(10 * kSecond)), "a recv that was submitted before the fork");
  rank.check(in == payload(rank.previous(), rank.id(), 2, in.size()), "the bytes that were sent", "others");
  exchange(rank, *agent, 3, 10'000);
  // A word and not the pipe's end: where ranks are threads, the children of the others also hold this pipe open.
  if (write(pipe.write.get(), "", 1) != 1) rank.harness_error("cannot write to a pipe");
  pipe.write.reset();
  rank.step("waiting for a forked child that ends");
  int status = 0;
  const Nanoseconds deadline = now() + rank.scaled(5 * kSecond);
  while (waitpid(child, &status, WNOHANG) == 0 && now() < deadline) poll(nullptr, 0, 2);
  rank.check(now() < deadline && WIFEXITED(status) && WEXITSTATUS(status) == 0,
             "a forked child that calls _exit(0) ends so", say("wait status ", status));
  rank.step("using a group after a forked child has ended");
  exchange(rank, *agent, 4, 10'000);
  rank.barrier();
  agent->close();
  rank.barrier();
  Plan plan;
  plan.space = "after";
  auto again = rank.open(plan);
  exchange(rank, *again, 1, 1000);
  rank.barrier();
}

// The child outlives the agent. The peers may not see its end then (the child also has the connections), but destroy
// and their deadlines hold.
void fork_outlived(Rank& rank) {
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (rank.id() != 0) {
    char byte = 0;
    rank.step("waiting for a rank that destroys its group while a forked child lives");
    bp_op op = recv_op(0, 2, &byte, 1);
    op.timeout_ns = rank.scaled(2 * kSecond);
    const Outcome outcome = agent->run(op);
    rank.check(outcome.status != BP_AGAIN && !outcome.ok(), "a recv from a rank that has left fails", outcome.text());
    rank.barrier();
    close_quickly(rank, std::move(agent));
    return;
  }
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  if (child < 0) rank.harness_error("no process");
  close_quickly(rank, std::move(agent));
  rank.barrier();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

void close_on_exec(Rank& rank) {
  const std::map<int, Descriptor> before = descriptors();
  rank.barrier();
  auto agent = rank.open();
  exchange(rank, *agent, 1, 300'000);
  rank.step("looking at the descriptors that the backend has opened");
  for (const auto& [number, descriptor] : descriptors()) {
    const auto earlier = before.find(number);
    if (earlier != before.end() && earlier->second.target == descriptor.target) continue;
    rank.check(descriptor.close_on_exec, "each descriptor that the backend opens is close-on-exec",
               say("descriptor ", number, " (", descriptor.target, ") is not"));
  }
  rank.barrier();
  agent->close();
}

// "backplane.native/1": what programs that call the library below are given.
void native_handle(Rank& rank) {
  auto agent = rank.open();
  const auto look = [&agent] {
    return static_cast<const bp_native_api*>(agent->api().extension(agent->self(), BP_EXT_NATIVE));
  };
  const bp_native_api* const first = look();
  if (first == nullptr) rank.skip(say("the backend shows no handle (", BP_EXT_NATIVE, ")"));
  rank.require(BP_HAS(first, handle) && first->type != nullptr && first->handle != nullptr, "a handle and its type",
               "NULL");
  const std::string type = first->type;
  void* const handle = first->handle;
  rank.require(!type.empty(), "the C type of the handle", "an empty text");
  for (const uint64_t tag : {1, 2}) {
    exchange(rank, *agent, tag, 3000);
    const bp_native_api* const again = look();
    rank.require(again != nullptr && again->handle == handle && again->type == type, "the same handle until destroy",
                 "another one after messages");
  }
  rank.barrier();
  agent->close();
}

}  // namespace

std::vector<Case> process_cases() {
  const auto make = [](const char* name, const char* about, void (*body)(Rank&)) {
    Case result;
    result.group = "process";
    result.name = name;
    result.about = about;
    result.body = body;
    return result;
  };
  Case outlived = make("fork-outlived", "a group can be destroyed while a forked child lives", fork_outlived);
  outlived.needs.ranks = 2;
  outlived.needs.processes = true;
  std::vector<Case> cases = {
      without(BP_BACKEND_ONE_WORLD,
              make("concurrent-init", "several threads may start groups at once", concurrent_init)),
      without(BP_BACKEND_ONE_WORLD,
              make("concurrent-groups", "several threads may use groups of their own at once", concurrent_groups)),
      make("concurrent-threads", "several threads may use one group at once", one_group_many_threads),
      make("any-thread", "calls may come from any thread", any_thread_calls),
      make("fork-child", "a forked child that ends at once does not affect its parent", fork_child),
      outlived,
      make("cloexec", "descriptors are close-on-exec", close_on_exec),
      make("native-handle", "the native handle exists and does not change", native_handle),
  };
  for (Case& one : process_signal_cases()) cases.push_back(one);
  return cases;
}

}  // namespace backplane::conformance
