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
std::shared_ptr<Gate> told;
std::atomic<int> touched = 0;

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
  rpc::register_function("throw", [] { throw std::runtime_error("the cat is out"); });
  rpc::register_function("wait", [] {
    const auto held = gate;
    const auto heard = told;
    begun->open();
    for (int i = 0; i < 3000 && !rpc::cancelled(); ++i) {
      if (held->wait(milliseconds(10))) return 1;
    }
    if (rpc::cancelled()) heard->open();
    return 0;
  });
  rpc::register_function("deaf", [] {
    const auto held = gate;
    const auto heard = told;
    begun->open();
    held->wait();
    heard->open();
  });
  rpc::register_function("nested", nested);
  rpc::register_inline_function("increment", [](int value) { return value + 1; });
  rpc::register_inline_function("halve", [](const rpc::Array<float>& values) {
    for (float& value : values) value /= 2;
    return values;
  });
  rpc::register_inline_function("too long", [] { rpc::rpc_sync("worker0", "touch", 1); });
  return true;
}();

class CallsTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, CallsTest, testing::ValuesIn(rpc_ways()),
                         [](const auto& info) { return info.param; });

TEST_P(CallsTest, CarryValuesThereAndBack) {
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

TEST_P(CallsTest, CarryArraysOfAnySize) {
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

TEST_P(CallsTest, FromManyThreadsAllEnd) {
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    on_ranks(4, [&worker](int thread) {
      std::vector<rpc::Future<int>> answers;
      for (int i = 0; i < 100; ++i) answers.push_back(worker.rpc_async<int>(1 - worker.rank(), "add", thread, i));
      for (int i = 0; i < 100; ++i) EXPECT_EQ(answers[static_cast<size_t>(i)].wait(), thread + i);
    });
  });
}

// Length of chains of calls, eight of which run at a time; threads are expensive under sanitizers.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDepth = 8;
#else
constexpr int kDepth = 64;
#endif

TEST_P(CallsTest, NestDeeperThanThePool) {
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

TEST_P(CallsTest, InlineFunctionsRunWhereCallsArrive) {
  in_world(GetParam(), 2, [](const rpc::Worker& worker) {
    for (int i = 0; i < 50; ++i) EXPECT_EQ(worker.rpc_sync<int>(i % 2, "increment", i), i + 1);
    const rpc::Array<float> ones(std::vector<float>(100000, 1.0F));
    const auto halves = worker.rpc_sync<rpc::Array<float>>(1 - worker.rank(), "halve", ones);
    EXPECT_EQ(std::accumulate(halves.begin(), halves.end(), 0.0), 50000);
    std::string text;
    EXPECT_EQ(failure_of([&worker] { worker.rpc_sync(1 - worker.rank(), "too long"); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("the inline function 'too long' must not call workers or wait"), std::string::npos) << text;
  });
}

// The following tests cover the core, which is the same over every backend.

TEST(RpcCallsTest, FailuresNameWorkerFunctionAndText) {
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    const int other = 1 - worker.rank();
    std::string text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(other, "throw"); }, &text), Status::kInternal);
    EXPECT_EQ(text, "'throw' on worker '" + worker_name(other) + "' (rank " + std::to_string(other) +
                        ") failed: std::runtime_error: the cat is out");
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
    EXPECT_EQ(failure_of([&] { worker.rpc_sync("nobody", "add", 1, 2); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("worker0, worker1"), std::string::npos) << text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync(7, "add", 1, 2); }, &text), Status::kInvalid);
    EXPECT_EQ(text, "there is no worker of rank 7; there are 2");
  });
}

TEST(RpcCallsTest, ThenRunsWhenTheCallHasEnded) {
  gate = std::make_shared<Gate>();
  begun = std::make_shared<Gate>();
  told = std::make_shared<Gate>();
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

TEST(RpcCallsTest, GracefulShutdownWaitsForWhatCallsCall) {
  static std::atomic<int> ended = 0;
  rpc::register_function("chain", [](int left) {
    if (left > 0) {
      const rpc::Worker worker = rpc::current();
      worker.rpc_async((worker.rank() + 1) % worker.world_size(), "chain", left - 1);  // without waiting for it
    }
    ++ended;
  });
  in_world("inproc", 3, [](const rpc::Worker& worker) { worker.rpc_async(worker.rank(), "chain", 50); });
  EXPECT_EQ(ended, 3 * 51);
}

TEST(RpcCallsTest, ShutdownWithoutGraceEndsWhatIsUnderWay) {
  gate = std::make_shared<Gate>();
  begun = std::make_shared<Gate>();
  told = std::make_shared<Gate>();
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
    EXPECT_TRUE(worker.shutdown().empty());  // twice is fine
  });
}

TEST(RpcCallsTest, ShutdownNamesWhatDoesNotEnd) {
  gate = std::make_shared<Gate>();
  begun = std::make_shared<Gate>();
  told = std::make_shared<Gate>();
  const Store store = Store::inproc();
  Gate gone;
  on_ranks(2, [&store, &gone](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("inproc", store, rank, 2));
    std::string text;
    if (rank == 0) {
      worker.rpc_async("worker1", "deaf");
      EXPECT_TRUE(begun->wait());
      EXPECT_EQ(failure_of([&worker] { worker.shutdown(true, milliseconds(50)); }, &text), Status::kTimeout);
      EXPECT_NE(text.find("it waits for 'deaf' on 'worker1' for"), std::string::npos) << text;
      gone.open();
    } else {
      EXPECT_TRUE(gone.wait());
      EXPECT_EQ(failure_of([&worker] { worker.shutdown(false, milliseconds(1)); }, &text), Status::kTimeout);
      EXPECT_NE(text.find("has left, but a function there does not end: 'deaf' for 'worker0' runs for"),
                std::string::npos)
          << text;
    }
    EXPECT_TRUE(worker.shutdown().empty());  // it has left
  });
  gate->open();
  EXPECT_TRUE(told->wait());
}

TEST(RpcCallsTest, TheFlightRecorderShowsWhichCallHangsWhere) {
  gate = std::make_shared<Gate>();
  begun = std::make_shared<Gate>();
  told = std::make_shared<Gate>();
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

// Agents have a hand in it.
class LeavingTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, LeavingTest, testing::ValuesIn([] {
                           std::vector<std::string> ways = own_agents();
                           ways.emplace_back("inproc");
                           return ways;
                         }()),
                         [](const auto& info) { return info.param; });

TEST_P(LeavingTest, WhoLeavesWithoutGraceTellsItsCallers) {
  gate = std::make_shared<Gate>();
  begun = std::make_shared<Gate>();
  told = std::make_shared<Gate>();
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options(GetParam(), store, rank, 2));
    if (rank == 0) {
      const auto call = worker.rpc_async<int>({"worker1", kNoTimeout}, "wait");  // no timeout
      if (!call.wait_for(seconds(20))) call.cancel();
      std::string text;
      EXPECT_EQ(failure_of([&call] { call.wait(); }, &text), Status::kCancelled);
      EXPECT_NE(text.find("it has shut down"), std::string::npos) << text;
    } else {
      begun->wait();
    }
    worker.shutdown(false);
  });
}

TEST_P(LeavingTest, ShutdownBesideCallsOfOtherThreads) {
  const Store store = Store::inproc();
  std::atomic<int> answered = 0;
  on_ranks(2, [&store, &answered](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options(GetParam(), store, rank, 2));
    std::atomic<int> ended = 0;
    std::atomic<int> gone = 0;  // callers, also since the other worker left first
    std::vector<std::thread> callers;
    for (int i = 0; i < 2; ++i) {
      callers.emplace_back([&worker, &ended, &gone, rank, i] {
        for (bool is_there = true; is_there;) {
          try {
            worker.rpc_sync<int>({(rank + i) % 2, milliseconds(200)}, "add", 1, 2);
            ++ended;
          } catch (const Error& e) {  // the host is busy; or this worker has left, or the other one
            is_there = e.status() == Status::kTimeout;
          }
        }
        ++gone;
      });
    }
    EXPECT_TRUE(eventually([&] { return ended >= 20 || gone == 2; })) << "calls neither end nor fail";
    worker.shutdown(false);
    for (std::thread& caller : callers) caller.join();
    answered += ended;
  });
  EXPECT_GE(answered, 20) << "the worker that leaves first must have had that many answers";
}

// As many buffers as a message can have, and more: a message that cannot be sent harms no other.
TEST(RpcCallsTest, ManyBuffers) {
  backplane::detail::call(
      bp_rpc_register, "count buffers",
      +[](void*, const bp_rpc_payload* arguments, bp_rpc_value*, bp_error* err) -> int32_t {
        return bp_error_set(err, BP_INVALID, bp_rpc_payload_buffers(arguments), -1, "counted");
      },
      static_cast<void*>(nullptr));
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    const int other = 1 - worker.rank();
    char byte = 0;
    for (const size_t count : {3999, 4094, 100000, 1}) {
      const std::vector<bp_buffer> buffers(count, bp_buffer{&byte, 1, BP_HOST, 0});
      bp_rpc_content content = {};
      content.struct_size = sizeof(content);
      content.buffers = buffers.data();
      content.buffer_count = static_cast<uint32_t>(count);
      std::string text;
      const auto call = [&](bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err) {
        return bp_rpc_call(worker.get(), other, "count buffers", &content, seconds(20).count() * 1000000000, done, ctx,
                           id, err);
      };
      const auto handle = std::shared_ptr<bp_rpc>(worker.get(), [](bp_rpc*) {});
      EXPECT_EQ(failure_of([&] { rpc::Future<int>::start(handle, call).wait(); }, &text), Status::kInvalid) << text;
      EXPECT_NE(text.find(count < 4000 ? "counted" : "buffers; pack them into fewer"), std::string::npos) << text;
    }
    EXPECT_EQ(worker.rpc_sync<int>({other, seconds(20)}, "add", 1, 2), 3);
  });
}

}  // namespace
}  // namespace backplane::test
