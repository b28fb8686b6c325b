// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <thread>

#include "rpc/gate.hpp"
#include "rpc/workers.hpp"
#include "support/eventually.hpp"

namespace backplane::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Person {
  std::string name;
  int age = 0;
  MSGPACK_DEFINE(name, age)
};

std::shared_ptr<Gate> gate;
std::shared_ptr<Gate> begun;
std::shared_ptr<Gate> cancel_seen;
std::atomic<int> touched = 0;

void close_gates() {
  for (auto* const each : {&gate, &begun, &cancel_seen}) *each = std::make_shared<Gate>();
}

int nested(int depth) {
  const rpc::Worker worker = rpc::current();
  const int next = (worker.rank() + 1) % worker.world_size();
  return depth == 0 ? 0 : 1 + worker.rpc_sync<int>(next, "nested", depth - 1);
}

[[maybe_unused]] const bool calls_registered = [] {
  rpc::register_function("add", [](int a, int b) { return a + b; });
  rpc::register_function("older", [](Person person, int years) {
    person.age += years;
    return person;
  });
  rpc::register_function("double", [](const rpc::Array<float>& values) {
    for (float& value : values) value *= 2;
    return values;
  });
  rpc::register_function("sum", [](const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  });
  rpc::register_function("touch", [](int by) { touched += by; });
  rpc::register_function("throw", [] { throw std::runtime_error("no such file"); });
  rpc::register_function("wait", [] {
    const auto held = gate;
    const auto seen = cancel_seen;
    begun->open();
    for (int i = 0; i < 3000 && !rpc::cancelled(); ++i) {
      if (held->wait(milliseconds(10))) return 1;
    }
    if (rpc::cancelled()) seen->open();
    return 0;
  });
  rpc::register_function("ignore cancellation", [] {
    const auto held = gate;
    const auto seen = cancel_seen;
    begun->open();
    held->wait();
    seen->open();
  });
  rpc::register_function("nested", nested);
  rpc::register_inline_function("increment", [](int value) { return value + 1; });
  rpc::register_inline_function("halve", [](const rpc::Array<float>& values) {
    for (float& value : values) value /= 2;
    return values;
  });
  rpc::register_inline_function("calls others", [] { rpc::rpc_sync("worker0", "touch", 1); });
  return true;
}();

class CallsTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, CallsTest, testing::ValuesIn(rpc_transports()),
                         [](const auto& info) { return info.param; });

TEST_P(CallsTest, TransferArgumentsAndResults) {
  in_world(GetParam(), 3, [](const rpc::Worker& worker) {
    for (int to = 0; to < worker.world_size(); ++to) {
      EXPECT_EQ(worker.rpc_sync<int>(to, "add", 1, to), 1 + to);
    }
    const auto older = worker.rpc_sync<Person>("worker2", "older", Person{"Ada", 36}, 1);
    EXPECT_EQ(older.name + std::to_string(older.age), "Ada37");
    const std::vector<int64_t> numbers = {1, 2, int64_t{1} << 40};
    EXPECT_EQ(worker.rpc_sync<int64_t>("worker0", "sum", numbers), (int64_t{1} << 40) + 3);
    worker.rpc_sync("worker1", "touch", 1);
  });
  EXPECT_EQ(touched.exchange(0), 3);
}

TEST_P(CallsTest, TransferArraysOfAnySize) {
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    for (const size_t size : {0, 1, 1000, 5000, 300000}) {
      const rpc::Array<float> ones(std::vector<float>(size, 1.0F));
      std::vector<rpc::Future<rpc::Array<float>>> answers;
      for (int i = 0; i < 4; ++i) {
        for (int to = 0; to < 2; ++to) answers.push_back(worker.rpc_async<rpc::Array<float>>(to, "double", ones));
      }
      for (const auto& answer : answers) {
        const rpc::Array<float> twos = answer.wait();
        ASSERT_EQ(twos.size(), size);
        EXPECT_EQ(std::accumulate(twos.begin(), twos.end(), 0.0), 2.0 * static_cast<double>(size));
      }
      EXPECT_EQ(std::accumulate(ones.begin(), ones.end(), 0.0), static_cast<double>(size));
    }
  });
}

TEST_P(CallsTest, FromManyThreadsComplete) {
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    on_ranks(4, [&worker](int thread) {
      std::vector<rpc::Future<int>> answers;
      for (int i = 0; i < 100; ++i) answers.push_back(worker.rpc_async<int>(1 - worker.rank(), "add", thread, i));
      for (int i = 0; i < 100; ++i) EXPECT_EQ(answers[static_cast<size_t>(i)].wait(), thread + i);
    });
  });
}

// The length of chains of nested calls. Eight chains run concurrently; threads are expensive under sanitizers.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDepth = 8;
#else
constexpr int kDepth = 64;
#endif

TEST_P(CallsTest, NestDeeperThanTheThreadPool) {
  in_world(
      GetParam(), 2,
      [](const rpc::Worker& worker) {
        const char* const given = std::getenv("BACKPLANE_RPC_NESTED_CALLS");
        const int depth = given == nullptr ? kDepth : 64;
        const int calls = given == nullptr ? 8 * depth : std::atoi(given);
        for (int done = 0; done < calls;) {
          std::vector<rpc::Future<int>> answers;
          for (int i = 0; i < 8 && done < calls; ++i, done += depth) {
            answers.push_back(worker.rpc_async<int>(1 - worker.rank(), "nested", depth));
          }
          for (const auto& answer : answers) EXPECT_EQ(answer.wait(), depth);
        }
      },
      "?num_worker_threads=1");
}

TEST_P(CallsTest, InlineFunctionsRunOnTheReceivingThread) {
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    for (int i = 0; i < 50; ++i) EXPECT_EQ(worker.rpc_sync<int>(i % 2, "increment", i), i + 1);
    const rpc::Array<float> ones(std::vector<float>(100000, 1.0F));
    const auto halves = worker.rpc_sync<rpc::Array<float>>(1 - worker.rank(), "halve", ones);
    EXPECT_EQ(std::accumulate(halves.begin(), halves.end(), 0.0), 50000);
    std::string text;
    EXPECT_EQ(failure_of([&worker] { worker.rpc_sync(1 - worker.rank(), "calls others"); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("the inline function 'calls others' must not call workers or wait"), std::string::npos) << text;
  });
}

// The following tests cover the core, which is independent of the backend.

TEST(RpcCallsTest, ErrorsNameWorkerFunctionAndCause) {
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    const int other = 1 - worker.rank();
    std::string text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(other, "throw"); }, &text), Status::kInternal);
    EXPECT_EQ(text, "'throw' on worker '" + worker_name(other) + "' (rank " + std::to_string(other) +
                        ") failed: std::runtime_error: no such file");
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(other, "ad", 1, 2); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("no function 'ad' is registered there. Did you mean 'add'? Register"), std::string::npos)
        << text;
    EXPECT_NE(text.find("add"), std::string::npos) << text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(other, "add", 1); }, &text), Status::kInvalid);
    const std::string on = "'add' on worker '" + worker_name(other) + "' (rank " + std::to_string(other) + ")";
    EXPECT_EQ(text, on + " failed: argument 2 of 'add' must be int: no value was sent; 'add' takes (int, int)");
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(other, "add", 1, 2, 3); }, &text), Status::kInvalid);
    EXPECT_EQ(text, on + " failed: too many arguments were sent: 'add' takes (int, int)");
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(other, "add", "one", 2); }, &text), Status::kInvalid);
    EXPECT_EQ(text, on + " failed: argument 1 of 'add' must be int: a string was sent; 'add' takes (int, int)");
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(other, "double", 1); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("argument 1 of 'double' must be "), std::string::npos) << text;
    EXPECT_NE(text.find(": no array was sent; 'double' takes ("), std::string::npos) << text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync<std::string>(other, "add", 1, 2); }, &text), Status::kInvalid);
    EXPECT_EQ(text, "the result of " + on +
                        " must be std::string: an integer was sent; ask for the type that the worker returns");
    EXPECT_EQ(failure_of([&] { worker.rpc_sync("worker7", "add", 1, 2); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("worker0, worker1"), std::string::npos) << text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(7, "add", 1, 2); }, &text), Status::kInvalid);
    EXPECT_EQ(text, "there is no worker of rank 7; there are 2");
  });
}

TEST(RpcCallsTest, ThenRunsAfterTheCall) {
  close_gates();
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    const auto call = worker.rpc_async<int>("worker1", "wait");
    const auto next = call.then([](const rpc::Future<int>& done) { return done.wait() + 41; });
    const auto last = next.then([](const rpc::Future<int>& done) {
      if (done.wait() == 42) throw std::runtime_error("enough");
    });
    EXPECT_FALSE(call.wait_for(milliseconds(1)));
    gate->open();
    EXPECT_EQ(next.wait(), 42);
    try {
      last.wait();
      ADD_FAILURE() << "the function given to `then` ran without a call";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "enough");
    }
    EXPECT_EQ(call.then([](const rpc::Future<int>& done) { return done.done(); }).wait(), true);
  });
}

TEST(RpcCallsTest, GracefulShutdownWaitsForNestedCalls) {
  static std::atomic<int> ended = 0;
  rpc::register_function("chain", [](int left) {
    if (left > 0) {
      const rpc::Worker worker = rpc::current();
      worker.rpc_async((worker.rank() + 1) % worker.world_size(), "chain", left - 1);  // does not wait
    }
    ++ended;
  });
  in_world("inproc", 3, [](const rpc::Worker& worker) { worker.rpc_async(worker.rank(), "chain", 50); });
  EXPECT_EQ(ended, 3 * 51);
}

TEST(RpcCallsTest, ImmediateShutdownCancelsPendingCalls) {
  close_gates();
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("inproc", store, rank, 2));
    if (rank == 0) {
      const auto call = worker.rpc_async<int>("worker1", "wait");
      worker.shutdown(false);
      EXPECT_EQ(failure_of([&call] { call.wait(); }), Status::kCancelled);
      EXPECT_EQ(failure_of([&worker] { worker.rpc_sync<int>("worker1", "add", 1, 2); }), Status::kCancelled);
      gate->open();
    } else {
      gate->wait();
      worker.shutdown(false);
    }
    EXPECT_TRUE(worker.shutdown().empty());  // a second shutdown has no effect
  });
}

TEST(RpcCallsTest, ShutdownNamesFunctionsThatDoNotReturn) {
  close_gates();
  const Store store = Store::inproc();
  Gate has_left;
  on_ranks(2, [&store, &has_left](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("inproc", store, rank, 2));
    std::string text;
    if (rank == 0) {
      worker.rpc_async("worker1", "ignore cancellation");
      EXPECT_TRUE(begun->wait());
      EXPECT_EQ(failure_of([&worker] { worker.shutdown(true, milliseconds(50)); }, &text), Status::kTimeout);
      EXPECT_NE(text.find("it waits for 'ignore cancellation' on 'worker1' for"), std::string::npos) << text;
      has_left.open();
    } else {
      EXPECT_TRUE(has_left.wait());
      EXPECT_EQ(failure_of([&worker] { worker.shutdown(false, milliseconds(1)); }, &text), Status::kTimeout);
      EXPECT_NE(text.find("has left, but a function there does not end: 'ignore cancellation' for 'worker0' runs for"),
                std::string::npos)
          << text;
    }
    EXPECT_TRUE(worker.shutdown().empty());  // has already left
  });
  gate->open();
  EXPECT_TRUE(cancel_seen->wait());
}

TEST(RpcCallsTest, FlightRecorderShowsPendingAndEndedCalls) {
  close_gates();
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("inproc", store, rank, 2));
    if (rank == 0) {
      worker.rpc_sync<int>("worker1", "add", 1, 2);
      failure_of([&worker] { worker.rpc_sync("worker1", "throw"); });
      const auto call = worker.rpc_async<int>("worker1", "wait");
      EXPECT_TRUE(begun->wait());
      char* json = nullptr;
      backplane::detail::call(bp_store_trace, store.get(), "rpc/0", int64_t{10'000'000'000}, &json);
      const std::string text = backplane::detail::take(json);
      const auto has = [&text](const std::string& function, const char* direction, const char* other,
                               const char* state) {
        const std::string entry = "\"direction\":\"" + std::string(direction) + "\",\"end_ns\":";
        for (size_t at = text.find(entry); at != std::string::npos; at = text.find(entry, at + 1)) {
          const std::string whole = text.substr(at, text.find('}', at) - at);
          if (whole.find("\"function\":\"" + function + "\"") != std::string::npos &&
              whole.find("\"state\":\"" + std::string(state) + "\"") != std::string::npos &&
              whole.find("\"worker\":\"" + std::string(other) + "\"") != std::string::npos) {
            return true;
          }
        }
        return false;
      };
      EXPECT_TRUE(has("add", "out", "worker1", "done")) << text;
      EXPECT_TRUE(has("add", "in", "worker0", "done")) << text;
      EXPECT_TRUE(has("throw", "out", "worker1", "failed")) << text;
      EXPECT_TRUE(has("wait", "out", "worker1", "in flight")) << text;
      EXPECT_TRUE(has("wait", "in", "worker0", "running")) << text;
      EXPECT_NE(text.find("\"agent.server_active_calls\":1,"), std::string::npos) << text;
      EXPECT_NE(text.find("\"round_trips\":{\"below_us_powers_of_2\":[0"), std::string::npos) << text;
      gate->open();
      call.wait();
    }
    worker.shutdown(true, seconds(20));
  });
}

// Agents take part in shutdown, so these tests run over each of them.
class RpcShutdownTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcShutdownTest, testing::ValuesIn([] {
                           std::vector<std::string> transports = agents_with_connections();
                           transports.emplace_back("inproc");
                           return transports;
                         }()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcShutdownTest, ImmediateShutdownFailsCallsOfPeers) {
  close_gates();
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options(GetParam(), store, rank, 2));
    if (rank == 0) {
      const auto call = worker.rpc_async<int>({"worker1", kNoTimeout}, "wait");
      if (!call.wait_for(seconds(20))) call.cancel();
      std::string text;
      EXPECT_EQ(failure_of([&call] { call.wait(); }, &text), Status::kCancelled);
      EXPECT_NE(text.find("the worker has shut down"), std::string::npos) << text;
    } else {
      begun->wait();
    }
    worker.shutdown(false);
  });
}

TEST_P(RpcShutdownTest, ShutdownDuringCallsOfOtherThreads) {
  const Store store = Store::inproc();
  std::atomic<int> replied = 0;
  on_ranks(2, [&store, &replied](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options(GetParam(), store, rank, 2));
    std::atomic<int> ended = 0;
    std::atomic<int> ended_callers = 0;  // this worker or the other one has left
    std::vector<std::thread> callers;
    for (int i = 0; i < 2; ++i) {
      callers.emplace_back([&worker, &ended, &ended_callers, rank, i] {
        for (bool is_running = true; is_running;) {
          try {
            worker.rpc_sync<int>({(rank + i) % 2, milliseconds(200)}, "add", 1, 2);
            ++ended;
          } catch (const Error& e) {  // kTimeout: the host is busy; otherwise a worker has left
            is_running = e.status() == Status::kTimeout;
          }
        }
        ++ended_callers;
      });
    }
    EXPECT_TRUE(eventually([&] { return ended >= 20 || ended_callers == 2; })) << "calls neither end nor fail";
    worker.shutdown(false);
    for (std::thread& caller : callers) caller.join();
    replied += ended;
  });
  EXPECT_GE(replied, 20) << "the worker that leaves first has at least that many replies";
}

}  // namespace
}  // namespace backplane::test
