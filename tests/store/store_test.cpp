// SPDX-License-Identifier: Apache-2.0
//
// The operations of all stores, over each kind.
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "callback_space.hpp"
#include "store_fixture.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

// Creates handles of one store, one per rank.
class Backing {
 public:
  virtual ~Backing() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

class InprocBacking final : public Backing {
 public:
  std::shared_ptr<Store> open() override { return store_->view(); }

 private:
  std::shared_ptr<Store> store_ = make_inproc_store();
};

class PrefixBacking final : public Backing {
 public:
  std::shared_ptr<Store> open() override { return make_prefix_store(store_, "group/7/"); }

 private:
  std::shared_ptr<Store> store_ = make_inproc_store();
};

class FileBacking final : public Backing {
 public:
  std::shared_ptr<Store> open() override { return make_file_store(directory_.file("store")); }

 private:
  ScopedDirectory directory_;
};

class TcpBacking final : public Backing {
 public:
  std::shared_ptr<Store> open() override {
    TcpStoreOptions options;
    options.port = server_->port();
    return make_tcp_store(options, soon());
  }

 private:
  std::unique_ptr<TcpStoreServer> server_ = make_tcp_store_server({});
};

// Creates each handle as a separate process does.
template <typename Space>
class CallbackBacking final : public Backing {
 public:
  std::shared_ptr<Store> open() override { return space_.open(); }

 private:
  Space space_;
};

class StoreTest : public testing::TestWithParam<const char*> {
 protected:
  StoreTest() {
    const std::string kind = GetParam();
    if (kind == "inproc") backing_ = std::make_unique<InprocBacking>();
    if (kind == "prefix") backing_ = std::make_unique<PrefixBacking>();
    if (kind == "file") backing_ = std::make_unique<FileBacking>();
    if (kind == "tcp") backing_ = std::make_unique<TcpBacking>();
    if (kind == "callbacks_polled") backing_ = std::make_unique<CallbackBacking<MapSpace>>();
    if (kind == "callbacks") backing_ = std::make_unique<CallbackBacking<StoreSpace>>();
    store_ = backing_->open();
  }

  std::unique_ptr<Backing> backing_;
  std::shared_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(All, StoreTest,
                         testing::Values("inproc", "prefix", "file", "tcp", "callbacks", "callbacks_polled"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StoreTest, KeepsValues) {
  store_->set("a", "1", soon());
  store_->set("b", "2", soon());
  store_->set("a", "3", soon());
  const auto other = backing_->open();
  EXPECT_EQ(other->get("a", soon()), "3");
  EXPECT_EQ(other->get("b", soon()), "2");
  EXPECT_EQ(other->num_keys(soon()), 2);
}

TEST_P(StoreTest, KeepsEmptyAndBinaryValues) {
  const std::string binary("\0\xff\r\n\0", 5);
  // Callbacks take keys as text.
  const std::string key = std::string(GetParam()).starts_with("callbacks") ? "\xff\r\n" : binary;
  store_->set("empty", "", soon());
  store_->set(key, binary, soon());
  const auto other = backing_->open();
  EXPECT_EQ(other->get("empty", soon()), "");
  EXPECT_EQ(other->get(key, soon()), binary);
}

TEST_P(StoreTest, KeepsLargeValues) {
  std::string large(size_t{8} << 20, 'x');
  large[12345] = '\0';
  store_->set("large", large, soon());
  EXPECT_TRUE(backing_->open()->get("large", soon()) == large);
}

TEST_P(StoreTest, RefusesOversizedArguments) {
  const std::string large(kMaxValueSize + 1, 'x');
  EXPECT_ERROR(BP_INVALID, "k' has 67108865 bytes", store_->set("k", large, soon()));
  EXPECT_ERROR(BP_INVALID, "at most 67108864", store_->compare_set("k", "", large, soon()));
  EXPECT_ERROR(BP_INVALID, "at most 4096", store_->get(std::string(kMaxKeySize + 1, 'k'), soon()));
  EXPECT_ERROR(BP_INVALID, "at most 65536", store_->wait(std::vector<std::string>(kMaxKeys + 1, "k"), soon()));
  EXPECT_ERROR(BP_INVALID, "must not be empty", store_->set("", "x", soon()));
  store_->set("still", "here", soon());
  EXPECT_EQ(store_->get("still", soon()), "here");
}

TEST_P(StoreTest, AddsToCounters) {
  EXPECT_EQ(store_->add("n", 5, soon()), 5);
  EXPECT_EQ(store_->add("n", -7, soon()), -2);
  EXPECT_EQ(backing_->open()->get("n", soon()), "-2");
  store_->set("n", "40", soon());
  EXPECT_EQ(store_->add("n", 2, soon()), 42);
  store_->set("n", "9223372036854775807", soon());
  EXPECT_ERROR(BP_INVALID, "overflow", store_->add("n", 1, soon()));
  store_->set("n", "4x", soon());
  EXPECT_ERROR(BP_INVALID, "its value '4x' is not a decimal number", store_->add("n", 1, soon()));
}

TEST_P(StoreTest, AddsFromManyThreads) {
  constexpr int kThreads = 8;
  constexpr int kTimes = 25;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, own = i % 2 == 0] {
      const auto store = own ? backing_->open() : store_;
      for (int j = 0; j < kTimes; ++j) store->add("n", 1, soon());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store_->add("n", 0, soon()), kThreads * kTimes);
}

TEST_P(StoreTest, ComparesAndSets) {
  EXPECT_EQ(store_->compare_set("k", "x", "1", soon()), "");  // missing, and not expected to be
  EXPECT_FALSE(store_->check({"k"}, soon()));
  EXPECT_EQ(store_->compare_set("k", "", "1", soon()), "1");
  EXPECT_EQ(store_->compare_set("k", "", "2", soon()), "1");
  EXPECT_EQ(store_->compare_set("k", "1", "2", soon()), "2");
  EXPECT_EQ(backing_->open()->get("k", soon()), "2");
}

TEST_P(StoreTest, RemovesAndChecks) {
  EXPECT_FALSE(store_->remove("k", soon()));
  store_->set("k", "", soon());
  EXPECT_TRUE(store_->check({"k"}, soon()));
  EXPECT_FALSE(store_->check({"k", "l"}, soon()));
  EXPECT_TRUE(store_->check({}, soon()));
  EXPECT_TRUE(backing_->open()->remove("k", soon()));
  EXPECT_FALSE(store_->check({"k"}, soon()));
  EXPECT_EQ(store_->num_keys(soon()), 0);
}

TEST_P(StoreTest, RemovesPrefixes) {
  if (!store_->removes_prefixes()) {
    EXPECT_ERROR(BP_UNSUPPORTED, "cannot list its keys", store_->remove_prefix("a/", soon()));
    return;
  }
  for (const char* key : {"a", "a/1", "a/2/3", "a/z", "a0", "b/1"}) store_->set(key, "", soon());
  const auto other = backing_->open();
  EXPECT_TRUE(other->check({"a/z"}, soon()));
  store_->remove_prefix("a/", soon());
  EXPECT_TRUE(other->check({"a", "a0", "b/1"}, soon()));
  EXPECT_EQ(other->num_keys(soon()), 3);
  store_->remove_prefix("a/", soon());
  EXPECT_EQ(other->num_keys(soon()), 3);
}

TEST_P(StoreTest, GetWaitsForSet) {
  const auto other = backing_->open();
  auto value = std::async(std::launch::async, [this] { return store_->get("k", soon()); });
  other->set("unrelated", "", soon());
  other->set("k", "v", soon());
  EXPECT_EQ(value.get(), "v");
}

TEST_P(StoreTest, AWaitingGetDoesNotBlockOthers) {
  auto value = std::async(std::launch::async, [this] { return store_->get("k", soon()); });
  auto number = std::async(std::launch::async, [this] { return store_->get("n", soon()); });
  EXPECT_EQ(store_->add("n", 1, soon()), 1);  // through the same handle
  EXPECT_EQ(number.get(), "1");
  EXPECT_EQ(store_->compare_set("k", "", "v", soon()), "v");
  EXPECT_EQ(value.get(), "v");
}

TEST_P(StoreTest, WaitsForAllKeys) {
  const auto other = backing_->open();
  auto done = std::async(std::launch::async, [this] { store_->wait({"a", "b", "a", "c"}, soon()); });
  for (const char* key : {"c", "a", "b"}) other->set(key, "", soon());
  done.get();
  store_->wait({}, soon());
}

TEST_P(StoreTest, TimeoutsNameTheKeys) {
  store_->set("here", "", soon());
  EXPECT_ERROR_LIKE(BP_TIMEOUT, "waited ([0-9]|[1-4][0-9]|50) ms for '", store_->get("gone", in_ms(50)));
  EXPECT_ERROR(BP_TIMEOUT, "gone', which no rank set", store_->get("gone", in_ms(50)));
  EXPECT_ERROR(BP_TIMEOUT, "gone' and '", store_->wait({"gone", "here", "lost"}, in_ms(20)));
  EXPECT_ERROR(BP_TIMEOUT, "g4' and 4 more", store_->wait({"g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8"}, in_ms(20)));
  EXPECT_ERROR(BP_TIMEOUT, store_->describe(), store_->get("gone", in_ms(1)));
}

TEST(Text, RoundsDurations) {
  EXPECT_EQ(duration_text(5'000'000'000), "5 s");
  EXPECT_EQ(duration_text(4'999'990'000), "5 s");
  EXPECT_EQ(duration_text(1'234'000'000), "1.23 s");
  EXPECT_EQ(duration_text(994'000'000), "994 ms");
  EXPECT_EQ(duration_text(49'600'000), "50 ms");
}

TEST_P(StoreTest, CheckOnceWhenTheDeadlineHasPassed) {
  store_->set("k", "v", in_ms(0));
  EXPECT_EQ(store_->get("k", in_ms(0)), "v");
  EXPECT_EQ(store_->add("n", 1, in_ms(0)), 1);
  EXPECT_ERROR(BP_TIMEOUT, "gone", store_->get("gone", in_ms(0)));
}

TEST_P(StoreTest, InterruptEndsWaitingCalls) {
  auto waiting = std::async(std::launch::async, [this] { return error_of([this] { store_->get("k", soon()); }); });
  auto more = std::async(std::launch::async, [this] { return error_of([this] { store_->wait({"l"}, soon()); }); });
  store_->interrupt(BP_CANCELLED, "the group was destroyed");
  store_->interrupt(BP_INTERNAL, "too late");
  for (auto* one : {&waiting, &more}) {
    const Error error = one->get();
    EXPECT_EQ(error.status(), BP_CANCELLED);
    EXPECT_STREQ(error.what(), "the group was destroyed");
  }
  EXPECT_ERROR(BP_CANCELLED, "destroyed", store_->set("k", "v", soon()));
  EXPECT_ERROR(BP_CANCELLED, "destroyed", store_->num_keys(soon()));
  const auto other = backing_->open();
  other->set("k", "v", soon());
  EXPECT_EQ(other->get("k", soon()), "v");
}

TEST_P(StoreTest, InterruptionReachesViews) {
  const auto view = make_prefix_store(store_, "v/");
  const auto sibling = make_prefix_store(store_, "s/");
  auto waiting = std::async(std::launch::async, [&view] { return error_of([&view] { view->get("k", soon()); }); });
  view->interrupt(BP_CANCELLED, "only this one");
  const Error told = waiting.get();
  EXPECT_EQ(told.status(), BP_CANCELLED);
  EXPECT_STREQ(told.what(), "only this one");
  sibling->set("k", "1", soon());
  EXPECT_EQ(store_->get("s/k", soon()), "1");
  auto deep = std::async(std::launch::async, [&sibling] {
    return error_of([&sibling] { make_prefix_store(sibling, "deep/")->get("k", soon()); });
  });
  store_->interrupt(BP_PEER_LOST, "rank 3 died");
  const Error told_deep = deep.get();
  EXPECT_EQ(told_deep.status(), BP_PEER_LOST);
  EXPECT_STREQ(told_deep.what(), "rank 3 died");
  EXPECT_ERROR(BP_PEER_LOST, "rank 3", store_->view()->get("k", soon()));
}

}  // namespace
}  // namespace backplane::core
