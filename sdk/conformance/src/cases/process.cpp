// SPDX-License-Identifier: Apache-2.0
//
// A backend in a process with its own threads, forks, signals and settings.
#include <atomic>
#include <functional>
#include <thread>

#include "groups.hpp"
#include "proc.hpp"
#include "process_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr int kThreads = 4;
constexpr int kManyThreads = 24;  // of one group

// Runs the function on separate threads. Leaves the body if one of them does.
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
  plan.space = fmt::format("{}/{}", name, i);
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

// Several threads use one group, each with its own tag.
void one_group_many_threads(Rank& rank) {
  if (!rank.has_flag(BP_BACKEND_TAGS)) rank.skip("without tags the messages of several threads cannot be told apart");
  auto agent = rank.open();
  rank.step(fmt::format("using one group from {} threads", kManyThreads));
  on_threads(kManyThreads, [&rank, &agent](int i) {
    for (int round = 0; round < 10; ++round) {
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
    elsewhere([&] { received = receiving.wait(rank.hang_limit(10 * kSecond)); });
    rank.require_ok(received, "a recv that another thread waits for");
    elsewhere([&] { receiving.release(); });
    rank.require_ok(sending.finish(rank.hang_limit(10 * kSecond)), "a send that another thread has submitted");
    rank.require(in == payload(rank.previous(), rank.id(), round, bytes), "the bytes that were sent", "others");
  }
  rank.barrier();
  elsewhere([&] { agent->close(); });
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
               fmt::format("descriptor {} ({}) is not", number, descriptor.target));
  }
  rank.barrier();
  agent->close();
}

// "backplane.native/1": the library's handle for programs that call it directly.
void native_handle(Rank& rank) {
  auto agent = rank.open();
  const auto look = [&agent] {
    return static_cast<const bp_native_api*>(agent->api().extension(agent->self(), BP_EXT_NATIVE));
  };
  const bp_native_api* const first = look();
  if (first == nullptr) rank.skip(fmt::format("the backend shows no handle ({})", BP_EXT_NATIVE));
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
  const Needs one = {.without = BP_BACKEND_ONE_WORLD};
  return {
      Case("concurrent-init", "several threads may start groups at once", concurrent_init, one),
      Case("concurrent-groups", "several threads may use groups of their own at once", concurrent_groups, one),
      Case("concurrent-threads", "several threads may use one group at once", one_group_many_threads),
      Case("any-thread", "calls may come from any thread", any_thread_calls),
      Case("cloexec", "descriptors are close-on-exec", close_on_exec),
      Case("native-handle", "the native handle exists and does not change", native_handle),
  };
}

}  // namespace backplane::conformance
