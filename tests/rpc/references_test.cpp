// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <mutex>
#include <random>

#include "rpc/workers.hpp"
#include "support/environment.hpp"
#include "support/scoped_log.hpp"

namespace backplane::test {
namespace {

using std::chrono::seconds;

// Counts live objects, and adds up the values of destroyed ones.
struct Counted {
  explicit Counted(int start) : value(start) { ++alive; }
  ~Counted() {
    total += value;
    --alive;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  std::mutex mutex;
  int value;
  static std::atomic<int> alive;
  static std::atomic<int> total;
};
std::atomic<int> Counted::alive = 0;
std::atomic<int> Counted::total = 0;
using CountedRef = rpc::RRef<rpc::Local<Counted>>;
std::atomic<int> storm_calls = 0;

[[maybe_unused]] const bool references_registered = [] {
  rpc::register_function("make", [](int start) { return rpc::Local<Counted>::make(start); });
  rpc::register_function("fail to make", []() -> int { throw std::runtime_error("intended"); });
  rpc::register_function("grow", [](const CountedRef& ref, int by) {
    Counted& counted = *ref.local_value();
    const std::lock_guard lock(counted.mutex);
    return counted.value += by;
  });
  rpc::register_function("same", [](const CountedRef& ref) { return ref; });
  rpc::register_function("numbers", [](int count) { return std::vector<double>(static_cast<size_t>(count), 0.5); });
  rpc::register_function("grow remotely", [](const CountedRef& ref, int by) {  // at the owner
    return rpc::rpc_sync<int>(ref.owner(), "grow", ref, by);
  });
  rpc::register_function("spread", [](const CountedRef& ref, int depth) {
    ++storm_calls;
    const rpc::Worker worker = rpc::current();
    if (depth == 0) {
      worker.rpc_async<int>(ref.owner(), "grow", ref, 1);
      return;
    }
    for (int step = 1; step <= 2; ++step) {
      worker.rpc_async((worker.rank() + step) % worker.world_size(), "spread", ref, depth - 1);
    }
  });
  return true;
}();

TEST(RpcReferencesTest, ValuesStayWithTheirOwner) {
  in_world("inproc", 3, [](const rpc::Worker& worker) {
    if (worker.rank() != 0) return;
    const CountedRef ref = worker.remote<rpc::Local<Counted>>("worker1", "make", 1);
    EXPECT_EQ(worker.rpc_sync<int>("worker1", "grow", ref, 1), 2);
    EXPECT_EQ(worker.rpc_sync<int>("worker2", "grow remotely", ref, 1), 3);  // a fork of a fork
    const CountedRef back = worker.rpc_sync<CountedRef>("worker2", "same", ref);
    EXPECT_EQ(worker.rpc_sync<int>("worker1", "grow", back, 0), 3);
    std::string text;
    EXPECT_EQ(failure_of([&ref] { ref.local_value(); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("the value belongs to worker 'worker1' (rank 1), and only that worker can use it in place"),
              std::string::npos)
        << text;
    const auto numbers = worker.remote<std::vector<double>>("worker2", "numbers", 100000);
    EXPECT_EQ(numbers.owner().name, "worker2");
    EXPECT_EQ(numbers.to_here().size(), 100000U);
  });
  EXPECT_EQ(Counted::alive, 0);
}

TEST(RpcReferencesTest, ToHereReturnsACopy) {
  rpc::register_function("here", [] {
    const rpc::Worker worker = rpc::current();
    const auto numbers = worker.remote<std::vector<double>>("worker1", "numbers", 100000);
    const auto failing = worker.remote<int>("worker1", "fail to make");
    std::string text;
    EXPECT_EQ(failure_of([&failing] { failing.to_here(); }, &text), Status::kInternal);
    EXPECT_EQ(
        text,
        "fetching a value of worker 'worker1' (rank 1) failed: 'fail to make' failed: std::runtime_error: intended");
    const auto here = worker.remote<int>("worker0", "fail to make");
    EXPECT_EQ(failure_of([&here] { here.local_value(); }, &text), Status::kInternal);
    EXPECT_EQ(
        text,
        "fetching a value of worker 'worker0' (rank 0) failed: 'fail to make' failed: std::runtime_error: intended");
    const auto wrong = worker.remote<std::string>("worker1", "numbers", 3);
    EXPECT_EQ(failure_of([&wrong] { wrong.to_here(); }, &text), Status::kInvalid);
    EXPECT_EQ(
        text,  // the numbers are an array, which is not in the payload
        "the value of worker 'worker1' (rank 1) must be std::string: no value was sent; ask for the type that the "
        "worker returns");
    const auto own = worker.make_rref<int>(7);
    EXPECT_TRUE(own.is_owner());
    EXPECT_EQ(own.local_value() + own.to_here(), 14);
    EXPECT_EQ(numbers.owner().name, "worker1");
    return numbers.to_here() == std::vector<double>(100000, 0.5);
  });
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    if (worker.rank() == 0) {
      EXPECT_TRUE(worker.rpc_sync<bool>(0, "here"));
    }
  });
}

TEST(RpcReferencesTest, LeaksAreReported) {
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const auto worker = rpc::Worker::join(worker_name(rank), rpc_options("inproc", store, rank, 2));
    std::optional<CountedRef> kept;
    if (rank == 0) kept = worker.remote<rpc::Local<Counted>>("worker1", "make", 1);
    const auto leaks = worker.shutdown(true, seconds(30));
    ASSERT_EQ(leaks.size(), rank == 1 ? 1U : 0U);
    if (rank == 1) {
      EXPECT_NE(leaks[0].find("(made by 'make') of worker 'worker1' is still referred to by 'worker0'"),
                std::string::npos)
          << leaks[0];
    }
  });
  EXPECT_EQ(Counted::alive, 0);
}

TEST(RpcReferencesTest, LocalReferencesOutliveTheWorker) {
  {
    const auto worker = rpc::Worker::join("me", rpc_options("self", Store::inproc(), 0, 1));
    const CountedRef ref = worker.make_rref(rpc::Local<Counted>::make(5));
    const rpc::Local<Counted>& counted = ref.local_value();
    EXPECT_EQ(worker.shutdown(false).size(), 1U);
    EXPECT_EQ(counted->value, 5);
  }
  EXPECT_EQ(Counted::alive, 0);
}

TEST(RpcReferencesTest, EndedCallsLeaveNoReferences) {
  if (agents_with_connections().empty()) GTEST_SKIP() << "no agent with connections of its own was built";
  for (const std::string& transport : agents_with_connections()) {
    for (int i = 0; i < 10; ++i) {
      in_world(transport, 2, [](const rpc::Worker& worker) {
        if (worker.rank() != 0) return;
        worker.remote<std::vector<double>>(1, "numbers", 1).to_here();
        // No later message to worker 1, whose reply held its reference.
        const CountedRef own = worker.make_rref(rpc::Local<Counted>::make(1));
        worker.rpc_sync<CountedRef>(1, "same", own);
      });
    }
  }
}

// Values are destroyed on threads that may call workers.
struct LastWord {
  explicit LastWord(rpc::Worker made_by) : worker(std::move(made_by)) {}
  ~LastWord() {
    try {
      answer = worker.rpc_sync<int>({"worker0", seconds(10)}, "last word", 1);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
  LastWord(const LastWord&) = delete;
  LastWord& operator=(const LastWord&) = delete;

  rpc::Worker worker;
  static std::atomic<int> answer;
};
std::atomic<int> LastWord::answer = 0;

TEST(RpcReferencesTest, DestructorsOfValuesMayCall) {
  rpc::register_function("last word", [](int word) { return word + 1; });
  rpc::register_function("make last word", [] { return rpc::Local<LastWord>::make(rpc::current()); });
  in_world("inproc", 2, [](const rpc::Worker& worker) {
    if (worker.rank() == 0) worker.remote<rpc::Local<LastWord>>("worker1", "make last word");
  });
  EXPECT_EQ(LastWord::answer, 2);
}

// Forks of four values spread between four workers by 16 trees of calls with 2 branches and 6 levels. Each leaf uses
// its value, and no reference is left.
void spread_forks(const std::string& backend) {
  storm_calls = Counted::total = 0;
  in_world(backend, 4, [](const rpc::Worker& worker) {
    const CountedRef ref = worker.remote<rpc::Local<Counted>>((worker.rank() + 1) % 4, "make", 0);
    for (int to = 0; to < 4; ++to) worker.rpc_async(to, "spread", ref, 5);
  });
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_EQ(storm_calls, 16 * 63);
  EXPECT_EQ(Counted::total, 16 * 32);
}

class RpcManyForksTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RpcManyForksTest, testing::ValuesIn(rpc_transports()),
                         [](const auto& info) { return info.param; });

TEST_P(RpcManyForksTest, LeavesNoReferences) { spread_forks(GetParam()); }

#ifdef BACKPLANE_TEST_chaos
// Every message of the agent begins with a frame of tag 1, which may be reordered.
TEST(RpcReferencesTest, ToleratesReorderedMessages) {
  const ScopedVariable layers("BACKPLANE_LAYERS", "chaos?rules=send tag 1 chance 0.2: reorder 20ms..50ms&seed=1");
  ScopedLog log;
  spread_forks("inproc");
  // Each rank counts separately.
  const std::string text = log.text();
  size_t passed = 0;
  for (size_t at = 0; (at = text.find(" messages of rank ", at)) != std::string::npos; ++at) {
    passed += std::stoul(text.substr(text.rfind(' ', at - 1) + 1));
  }
  EXPECT_GT(passed, 0U) << "no message was reordered";
}

// Lost messages of all kinds fail calls, but leave no reference.
TEST(RpcReferencesTest, LostMessagesLeaveNoReferences) {
  // The first messages belong to the start of the workers.
  const std::string rule = "send after 150 every 40 times 15: drop";
  const ScopedVariable layers("BACKPLANE_LAYERS", "chaos?rules=" + rule + "&seed=1");
  ScopedLog log;
  const Store store = Store::inproc();
  on_ranks(4, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 4);
    options.rpc_timeout = std::chrono::milliseconds(300);
    const rpc::Worker worker = rpc::Worker::join(worker_name(rank), options);
    {
      const CountedRef ref = worker.remote<rpc::Local<Counted>>((rank + 1) % 4, "make", 0);
      for (int to = 0; to < 4; ++to) worker.rpc_async(to, "spread", ref, 5);
    }
    EXPECT_EQ(worker.shutdown(true, seconds(60)), std::vector<std::string>());
  });
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_NE(log.text().find("triggers rule 1 (" + rule + ")"), std::string::npos) << "no message was lost";
}
#endif

}  // namespace
}  // namespace backplane::test
