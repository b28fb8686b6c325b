// SPDX-License-Identifier: Apache-2.0
//
// Groups over a custom store of the program, and a store server that waits until its clients have left.
#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

constexpr std::chrono::seconds kSoon(60);

// Held by a callback, to observe when the callbacks are destroyed.
using Tally = std::shared_ptr<std::atomic<int>>;

// The key-value space is a store of this process.
StoreCallbacks over(Store space, Tally kept = nullptr) {
  StoreCallbacks callbacks;
  callbacks.name = "test://space";
  callbacks.set = [space, kept](const std::string& key, std::string_view value, Timeout timeout) mutable {
    space.set(key, value, timeout);
  };
  callbacks.get = [space](const std::string& key, Timeout timeout) mutable -> std::optional<std::string> {
    return space.get(key, timeout);
  };
  callbacks.add = [space](const std::string& key, int64_t delta, Timeout timeout) mutable {
    return space.add(key, delta, timeout);
  };
  callbacks.compare_set = [space](const std::string& key, std::string_view expected, std::string_view desired,
                                  Timeout timeout) mutable {
    return space.compare_set(key, expected, desired, timeout);
  };
  callbacks.remove = [space](const std::string& key, Timeout timeout) mutable { return space.remove(key, timeout); };
  return callbacks;
}

class CustomStoreTest : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(All, CustomStoreTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(3)), backend_test_name);

TEST_P(CustomStoreTest, GroupsStart) {
  const Store space = Store::inproc();
  on_ranks(world_size(), [this, &space](int rank) {
    const Store store = Store::custom(over(space));  // one per rank, as in separate processes
    ProcessGroup group = ProcessGroup::create(group_options(backend(), store, rank, world_size()));
    int sum = rank + 1;
    group.all_reduce(as_buffer(sum));
    EXPECT_EQ(sum, 6);
    ProcessGroup part = group.split(rank == 0 ? 0 : 1);
    EXPECT_EQ(part.world_size(), rank == 0 ? 1 : 2);
    part.barrier();
    group.barrier();
  });
}

TEST(CustomStore, SurvivorsShrinkAfterARankHasLeft) {
  const Store space = Store::inproc();
  on_ranks(3, [&space](int rank) {
    const Store store = Store::custom(over(space));
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 3));
    group.barrier();
    if (rank == 1) return;
    ProcessGroup rest = group.shrink();
    EXPECT_EQ(rest.world_size(), 2);
    rest.barrier();
  });
}

TEST(CustomStore, FunctionsAreDestroyedAfterTheirLastUse) {
  const Tally kept = std::make_shared<std::atomic<int>>();
  {
    const Store store = Store::custom(over(Store::inproc(), kept));
    const Store part = store.with_prefix("p/");
    ProcessGroup group = ProcessGroup::create(group_options("self", part, 0, 1));
    group.barrier();
    EXPECT_GT(kept.use_count(), 1);
  }
  EXPECT_EQ(kept.use_count(), 1);
}

TEST(CustomStore, ExceptionsOfTheFunctionsAreReported) {
  StoreCallbacks callbacks = over(Store::inproc());
  callbacks.set = [](const std::string& key, std::string_view, Timeout) {
    if (key == "own") throw std::runtime_error("no quorum");
    detail::fail(Status::kResource, "the disk is full");
  };
  callbacks.get = [](const std::string&, Timeout) { return std::optional<std::string>(); };
  Store store = Store::custom(callbacks);
  std::string text;
  EXPECT_EQ(failure_of([&store] { store.set("k", "v"); }, &text), Status::kResource);
  EXPECT_EQ(text, "the callback `set` of test://space failed for key 'k': the disk is full");
  EXPECT_EQ(failure_of([&store] { store.set("own", "v"); }, &text), Status::kInternal);
  EXPECT_NE(text.find("no quorum"), std::string::npos) << text;
  EXPECT_EQ(failure_of([&store] { store.get("k", Timeout(0)); }, &text), Status::kTimeout);
  EXPECT_NE(text.find("'k', which no rank set (at test://space)"), std::string::npos) << text;
  EXPECT_EQ(failure_of([&store] { store.num_keys(); }), Status::kUnsupported);
}

TEST(CustomStore, AFailureOfTheSpaceFailsTheGroupsStart) {
  StoreCallbacks callbacks = over(Store::inproc());
  callbacks.compare_set = [](const std::string&, std::string_view, std::string_view, Timeout) -> std::string {
    detail::fail(Status::kResource, "the disk is full");
  };
  const Store store = Store::custom(callbacks);
  std::string text;
  const auto create = [&store] { ProcessGroup::create(group_options("inproc", store, 0, 2)); };
  EXPECT_EQ(failure_of(create, &text), Status::kResource);
  EXPECT_NE(text.find("`compare_set` of test://space"), std::string::npos) << text;
  EXPECT_NE(text.find("the disk is full"), std::string::npos) << text;
}

TEST(CustomStore, MissingFunctionsAreNamed) {
  StoreCallbacks callbacks = over(Store::inproc());
  callbacks.remove = nullptr;
  std::string text;
  EXPECT_EQ(failure_of([&callbacks] { Store::custom(callbacks); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "`callbacks->delete_key` must not be NULL");
}

// A callback that ignores its timeout does not delay the start of a group beyond the group's timeout, nor its abort.
TEST(CustomStore, AHungFunctionIsLimitedByTheGroupsTimeout) {
  std::promise<void> go;
  const std::shared_future<void> gate = go.get_future().share();
  const Tally kept = std::make_shared<std::atomic<int>>();
  {
    StoreCallbacks callbacks = over(Store::inproc(), kept);
    callbacks.compare_set = [gate](const std::string&, std::string_view, std::string_view, Timeout) {
      gate.wait();
      return std::string();
    };
    const Store store = Store::custom(callbacks);
    std::string text;
    const auto create = [&store] {
      ProcessGroup::create(group_options("inproc", store, 0, 2, std::chrono::milliseconds(100)));
    };
    EXPECT_EQ(failure_of(create, &text), Status::kTimeout);
    EXPECT_NE(text.find("a callback of test://space did not return"), std::string::npos) << text;
  }
  EXPECT_GT(kept.use_count(), 1);  // held by the detached callback
  go.set_value();
  while (kept.use_count() > 1) std::this_thread::yield();
}

TEST(CustomStore, AbortEndsTheWaitForAHungFunction) {
  Store space = Store::inproc();
  std::promise<void> go;
  std::promise<void> entered;
  StoreCallbacks callbacks = over(space);
  callbacks.compare_set = [space, gate = go.get_future().share(), &entered](
                              const std::string& key, std::string_view expected, std::string_view desired,
                              Timeout timeout) mutable {
    if (key.find("bp/join/rank/") != std::string::npos && space.check({"stuck"})) {
      entered.set_value();
      gate.wait();
    }
    return space.compare_set(key, expected, desired, timeout);
  };
  {
    ProcessGroup group = ProcessGroup::create(group_options("inproc", Store::custom(callbacks), 0, 1));
    space.set("stuck", "");
    auto splitting = std::async(std::launch::async, [&group] {
      std::string text;
      EXPECT_EQ(failure_of([&group] { group.split(0); }, &text), Status::kCancelled);
      return text;
    });
    entered.get_future().wait();
    group.abort("enough");
    EXPECT_NE(splitting.get().find("enough"), std::string::npos);
  }
  go.set_value();
}

TEST(StoreServerTest, WaitsForItsClients) {
  StoreServer server("auto");
  const std::string address = server.address();
  const std::string port = ":" + std::to_string(server.port());
  ASSERT_TRUE(address.ends_with(port)) << address;
  std::string host = address.substr(0, address.size() - port.size());
  if (host.starts_with("[")) host = host.substr(1, host.size() - 2);
  server.wait();  // has no clients
  std::promise<void> go;
  std::thread client([&host, &server, gate = go.get_future().share()] {
    Store store = Store::connect(host, server.port());
    gate.wait();
    store.set("k", "v");
  });
  Store own = Store::connect(host, server.port());
  std::string text;
  EXPECT_EQ(failure_of([&server] { server.wait(Timeout(0)); }, &text), Status::kTimeout);
  EXPECT_NE(text.find("still connected"), std::string::npos) << text;
  go.set_value();
  EXPECT_EQ(own.get("k"), "v");
  own = Store::inproc();  // closes the connection
  server.wait();
  client.join();
}

// In torch, the other ranks fail if rank 0, which serves the store, ends first.
TEST(StoreServerTest, RankZeroEndsLast) {
  auto server = std::make_unique<StoreServer>();
  const uint16_t port = server->port();
  on_ranks(3, [&server, port](int rank) {
    {
      Store store = Store::connect("127.0.0.1", port);
      ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 3));
      group.barrier();
      if (rank != 0) {
        for (int i = 0; i < 100; ++i) EXPECT_EQ(store.add("still/" + std::to_string(rank), 1), i + 1);
      }
    }
    if (rank != 0) return;
    server->wait(kSoon);
    server.reset();
  });
}

}  // namespace
}  // namespace backplane::test
