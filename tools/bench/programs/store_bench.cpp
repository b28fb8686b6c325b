// SPDX-License-Identifier: Apache-2.0
//
// The TCP store with 1 to 1,000 clients, each a thread of this process: how long all take to connect, to join a job and
// to start a group, and how many requests per second the server handles.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backplane/backplane.hpp"
#include "rendezvous/rendezvous.hpp"
#include "security/secret.hpp"
#include "store/store.hpp"

namespace backplane::bench {
namespace {

using Clock = std::chrono::steady_clock;
using core::TcpStoreOptions;

core::Deadline soon() { return core::Deadline::after(INT64_C(120) * 1000000000); }

// The first failure of any thread.
class Failure {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = text;
  }
  const std::string& text() const { return text_; }  // once the threads have ended

 private:
  std::mutex mutex_;
  std::string text_;
};

// Runs body(rank) on `count` threads, which begin together. Returns the seconds until the last one is done. The clients
// that a body returns are released after that.
double run_together(int count, Failure& failure, const std::function<std::shared_ptr<void>(int)>& body) {
  Clock::time_point begin;
  Clock::time_point end;
  std::barrier start(count, [&begin]() noexcept { begin = Clock::now(); });
  std::barrier finish(count, [&end]() noexcept { end = Clock::now(); });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([rank, &start, &finish, &failure, &body] {
      std::shared_ptr<void> client;
      start.arrive_and_wait();
      try {
        client = body(rank);
      } catch (const std::exception& e) {
        failure.set(e.what());
      }
      finish.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(end - begin).count();
}

std::shared_ptr<const core::Secret> some_secret() {
  return std::make_shared<const core::Secret>("a secret of this benchmark alone", "store_bench");
}

TcpStoreOptions options_for(const core::TcpStoreServer& server, int rank, bool has_secret) {
  TcpStoreOptions options;
  options.port = server.port();
  options.rank = rank;
  if (has_secret) options.secret = some_secret();
  return options;
}

// Times body(server, rank) on as many threads as the benchmark's first argument says, each time with a new server.
void measure(benchmark::State& state, bool has_secret,
             const std::function<std::shared_ptr<void>(const core::TcpStoreServer&, int)>& body) {
  const auto count = static_cast<int>(state.range(0));
  for (auto _ : state) {
    TcpStoreOptions options;
    if (has_secret) options.secret = some_secret();
    const auto server = core::make_tcp_store_server(options);
    Failure failure;
    state.SetIterationTime(run_together(count, failure, [&](int rank) { return body(*server, rank); }));
    if (!failure.text().empty()) return state.SkipWithError(failure.text().c_str());
  }
  state.counters["clients"] = count;
}

void connect(benchmark::State& state) {
  measure(state, false, [](const core::TcpStoreServer& server, int rank) {
    return core::make_tcp_store(options_for(server, rank, false), soon());
  });
}

void connect_with_secret(benchmark::State& state) {
  measure(state, true, [](const core::TcpStoreServer& server, int rank) {
    return core::make_tcp_store(options_for(server, rank, true), soon());
  });
}

// Connects, enrolls with the failure detector and joins: what the start of a group asks of the store before a backend.
void join(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  measure(state, false, [count](const core::TcpStoreServer& server, int rank) {
    const auto store = core::make_tcp_store(options_for(server, rank, false), soon());
    core::join(*store, rank, count, "host, pid 1", soon());
    return store;
  });
}

// All of ProcessGroup::create over the backend for threads.
void start_group(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  measure(state, false, [count](const core::TcpStoreServer& server, int rank) {
    const Store store = Store::connect("127.0.0.1", server.port());
    GroupOptions options;
    options.backend = "inproc";
    options.store = store;
    options.rank = rank;
    options.world_size = count;
    return std::make_shared<ProcessGroup>(ProcessGroup::create(options));
  });
}

// Each client adds to a counter of its own, one request after the other.
void requests(benchmark::State& state) {
  constexpr int kRequests = 20000;  // of all clients
  const auto count = static_cast<int>(state.range(0));
  const int each = std::max(kRequests / count, 1);
  const auto server = core::make_tcp_store_server({});
  std::vector<std::shared_ptr<core::Store>> clients;
  for (int rank = 0; rank < count; ++rank)
    clients.push_back(core::make_tcp_store(options_for(*server, rank, false), soon()));
  int64_t expected = 0;
  for (auto _ : state) {
    Failure failure;
    expected += each;
    state.SetIterationTime(run_together(count, failure, [&](int rank) {
      int64_t sum = 0;
      const std::string key = "counter/" + std::to_string(rank);
      for (int i = 0; i < each; ++i) sum = clients[static_cast<size_t>(rank)]->add(key, 1, soon());
      if (sum != expected) throw std::runtime_error("a counter has another value than its client added");
      return nullptr;
    }));
    if (!failure.text().empty()) return state.SkipWithError(failure.text().c_str());
  }
  state.SetItemsProcessed(state.iterations() * each * count);
  state.counters["clients"] = count;
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Arg(1)->Arg(10)->Arg(100)->Arg(1000)->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(connect)->Apply(sizes);
BENCHMARK(connect_with_secret)->Apply(sizes);
BENCHMARK(join)->Apply(sizes);
BENCHMARK(start_group)->Apply(sizes);
BENCHMARK(requests)->Apply(sizes);

}  // namespace
}  // namespace backplane::bench

BENCHMARK_MAIN();
