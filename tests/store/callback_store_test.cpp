// SPDX-License-Identifier: Apache-2.0
//
// Tests of callback stores alone: invalid results, callbacks that do not return, release of the program's functions.
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "callback_space.hpp"
#include "store_fixture.hpp"

namespace backplane::core {
namespace {

// A map. Tests replace single callbacks by wrong ones.
class CallbackStoreTest : public testing::Test {
 protected:
  std::shared_ptr<Store> open() { return make_callback_store(table_); }

  MapSpace space_;
  bp_store_callbacks table_ = space_.callbacks();
};

int32_t set_fails(void* ctx, const char*, const void*, uint64_t, int64_t, bp_error* err) {
  return bp_error_set(err, *static_cast<int32_t*>(ctx), 113, 5, "no leader");
}

int32_t set_says_nothing(void*, const char*, const void*, uint64_t, int64_t, bp_error*) { return BP_RESOURCE; }

TEST_F(CallbackStoreTest, FailuresKeepTheirStatusAndText) {
  int32_t status = BP_PEER_LOST;
  table_.ctx = &status;
  table_.set = set_fails;
  const Error error = error_of([this] { open()->set("k", "v", soon()); });
  EXPECT_EQ(error.status(), BP_PEER_LOST);
  EXPECT_STREQ(error.what(), "the callback `set` of map://test failed for key 'k': no leader");
  EXPECT_EQ(error.native_code(), 113);
  EXPECT_EQ(error.peer_rank(), -1);  // the store's numbers are not the group's
  table_.set = set_says_nothing;
  EXPECT_ERROR(BP_RESOURCE, "it gave no reason", open()->set("k", "v", soon()));
}

TEST_F(CallbackStoreTest, RejectsInvalidStatuses) {
  int32_t status = 0;
  table_.ctx = &status;
  table_.set = set_fails;
  for (const int32_t wrong : {-1, int32_t{BP_AGAIN}, 9, 77}) {
    status = wrong;
    EXPECT_ERROR(BP_INTERNAL, fmt::format("`set` of map://test returned {}, which is not an allowed status", wrong),
                 open()->set("k", "v", soon()));
  }
}

TEST_F(CallbackStoreTest, ValuesMustBeGiven) {
  table_.get = [](void*, const char*, bp_store_answer*, int64_t, bp_error*) { return int32_t{BP_OK}; };
  table_.compare_set = [](void*, const char*, const void*, uint64_t, const void*, uint64_t, bp_store_answer*, int64_t,
                          bp_error*) { return int32_t{BP_OK}; };
  EXPECT_ERROR(BP_INTERNAL, "`get` of map://test returned BP_OK without a value (request for 'k')",
               open()->get("k", soon()));
  EXPECT_ERROR(BP_INTERNAL, "`compare_set` of map://test returned BP_OK without a value",
               open()->compare_set("k", "", "v", soon()));
}

TEST_F(CallbackStoreTest, ValuesAreChecked) {
  table_.get = [](void*, const char* key, bp_store_answer* answer, int64_t, bp_error* err) {
    const std::string kind = key;
    EXPECT_EQ(bp_store_answer_set(answer, "first", 5, nullptr), BP_OK);
    if (kind == "large") return bp_store_answer_set(answer, key, kMaxValueSize + 1, err);
    if (kind == "null") return bp_store_answer_set(answer, nullptr, 1, err);
    return bp_store_answer_set(answer, nullptr, 0, err);
  };
  const auto store = open();
  EXPECT_ERROR(BP_INVALID, "at most 67108864", store->get("large", soon()));
  EXPECT_ERROR(BP_INVALID, "`value` must not be NULL", store->get("null", soon()));
  EXPECT_EQ(store->get("empty", soon()), "");
  table_.num_keys = [](void*, int64_t* count, int64_t, bp_error*) {
    *count = -3;
    return int32_t{BP_OK};
  };
  EXPECT_ERROR(BP_INTERNAL, "counted -3 keys", open()->num_keys(soon()));
  table_.num_keys = nullptr;
  EXPECT_ERROR(BP_UNSUPPORTED, "map://test has no callback `num_keys`", open()->num_keys(soon()));
}

TEST_F(CallbackStoreTest, AnswersAreInvalidAfterTheCallback) {
  static bp_store_answer* kept = nullptr;
  table_.get = [](void*, const char*, bp_store_answer* answer, int64_t, bp_error* err) {
    kept = answer;
    return bp_store_answer_set(answer, "v", 1, err);
  };
  EXPECT_EQ(open()->get("k", soon()), "v");
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(bp_store_answer_set(kept, "late", 4, &err), BP_INVALID);
  EXPECT_STREQ(err.text, "`answer` was released");
  EXPECT_EQ(bp_store_answer_set(nullptr, "v", 1, nullptr), BP_INVALID);
}

TEST_F(CallbackStoreTest, ExceptionsEndOnlyTheirCall) {
  table_.set = [](void*, const char*, const void*, uint64_t, int64_t, bp_error*) -> int32_t {
    throw std::runtime_error("which it must not");
  };
  EXPECT_THROW(open()->set("k", "v", soon()), std::runtime_error);
}

TEST_F(CallbackStoreTest, KeysWithNulAreRefused) {
  const auto store = open();
  const std::string key("a\0b", 3);
  EXPECT_ERROR(BP_INVALID, "'a\\x00b' contains a NUL", store->set(key, "v", soon()));
  EXPECT_ERROR(BP_INVALID, "contains a NUL", store->check({"a", key}, soon()) || store->check({key}, soon()));
}

// The timeouts that callbacks get.
TEST_F(CallbackStoreTest, TimeoutsAreThoseOfTheHeader) {
  static std::vector<int64_t> told;
  told.clear();
  table_.set = [](void*, const char*, const void*, uint64_t, int64_t timeout_ns, bp_error*) {
    told.push_back(timeout_ns);
    return int32_t{BP_OK};
  };
  table_.get = [](void*, const char*, bp_store_answer* answer, int64_t timeout_ns, bp_error* err) {
    told.push_back(timeout_ns);
    return bp_store_answer_set(answer, "v", 1, err);
  };
  const auto store = open();
  store->set("k", "v", Deadline::never());
  store->set("k", "v", in_ms(0));
  store->set("k", "v", in_ms(30'000));
  store->get("k", Deadline::never());
  store->get("k", in_ms(0));
  ASSERT_EQ(told.size(), 5U);
  EXPECT_EQ(told[0], BP_NO_TIMEOUT);
  EXPECT_EQ(told[1], 1'000'000'000);
  EXPECT_TRUE(told[2] > 1'000'000'000 && told[2] <= 30'000'000'000) << told[2];
  EXPECT_TRUE(told[3] > 0 && told[3] <= 1'000'000'000) << told[3];
  EXPECT_EQ(told[4], 0);
}

// A space whose `set` ignores its timeout and returns when the test releases it.
struct Stuck {
  Stuck() {
    table = MapSpace().callbacks();
    table.ctx = this;
    table.set = [](void* ctx, const char*, const void*, uint64_t, int64_t, bp_error*) {
      static_cast<Stuck*>(ctx)->entered.set_value();
      static_cast<Stuck*>(ctx)->gate.wait();
      return int32_t{BP_OK};
    };
    table.release = [](void* ctx) { ++static_cast<Stuck*>(ctx)->releases; };
  }
  void await_release() const {
    while (releases == 0) std::this_thread::yield();
  }

  bp_store_callbacks table;
  std::promise<void> entered;
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  std::atomic<int> releases = 0;
};

TEST(CallbackStoreStuck, InterruptionEndsTheCall) {
  Stuck stuck;
  auto store = make_callback_store(stuck.table);
  auto call = std::async(std::launch::async,
                         [&store] { return error_of([&store] { store->set("k", "v", Deadline::never()); }); });
  stuck.entered.get_future().wait();
  store->interrupt(BP_CANCELLED, "the group was aborted");
  const Error error = call.get();
  EXPECT_EQ(error.status(), BP_CANCELLED);
  EXPECT_STREQ(error.what(), "the group was aborted");
  store.reset();
  EXPECT_EQ(stuck.releases, 0);  // the detached callback may still use the program's context
  stuck.go.set_value();
  stuck.await_release();
  EXPECT_EQ(stuck.releases, 1);
}

TEST(CallbackStoreStuck, TheDeadlineEndsTheCall) {
  Stuck stuck;
  auto store = make_callback_store(stuck.table);
  EXPECT_ERROR_LIKE(BP_TIMEOUT,
                    "a callback of map://test did not return within [0-9]+ ms and 1 s more .request for 'k'.",
                    store->set("k", "v", in_ms(20)));
  store.reset();
  stuck.go.set_value();
  stuck.await_release();
}

TEST(CallbackStoreStuck, ReleaseFollowsTheLastHandle) {
  Stuck stuck;
  auto store = make_callback_store(stuck.table);
  auto view = make_prefix_store(store, "p/");
  auto membership = view->view()->enroll(
      {"", -1, ""}, [](const Loss&) {}, soon());
  store.reset();
  view.reset();
  EXPECT_EQ(stuck.releases, 0);
  membership.reset();
  EXPECT_EQ(stuck.releases, 1);
}

TEST_F(CallbackStoreTest, RanksThatLeaveAreKnown) {
  const auto enroll = [this](int32_t rank) {
    return make_prefix_store(open(), "group/")
        ->enroll(
            {"", rank, ""}, [](const Loss&) {}, soon());
  };
  const auto zero = enroll(0);
  EXPECT_FALSE(zero->watches());
  EXPECT_TRUE(zero->absences(soon()).empty());
  for (const int32_t rank : {11, 1, -1}) enroll(rank);
  EXPECT_EQ(zero->absences(soon()), (Absences{{1, Absence::kLeft}, {11, Absence::kLeft}}));
}

}  // namespace
}  // namespace backplane::core
