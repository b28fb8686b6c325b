// SPDX-License-Identifier: Apache-2.0
//
// Grow and join, with ranks and newcomers that are threads. tests/liveness/grow_test.cpp has processes that die.
#include <future>
#include <optional>

#include "support/eventually.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLongest{60};

// A process that asks to join, here a thread.
class Newcomer {
 public:
  Newcomer(const std::string& backend, const Store& store, Timeout timeout = kLongest)
      : joined_(std::async(std::launch::async, [backend, store, timeout] {
          GroupOptions options;
          options.backend = backend;
          options.store = store;
          options.timeout = kLongest;
          return ProcessGroup::join(options, timeout);
        })) {}
  ProcessGroup get() { return joined_.get(); }

 private:
  std::future<ProcessGroup> joined_;
};

// Waits until so many processes have asked.
void await_newcomers(const Store& store, int64_t count) {
  EXPECT_TRUE(eventually([&store, count] { return store.newcomers() == count; }));
}

void expect_sum(ProcessGroup& group) {
  int value = 1;
  group.all_reduce(as_buffer(value));
  EXPECT_EQ(value, group.world_size());
}

class GrowTest : public testing::TestWithParam<std::string> {
 protected:
  // Runs body(group) on the ranks of a group of `world_size`, which meets in store_.
  void in_members(int world_size, const std::function<void(ProcessGroup&)>& body) {
    on_ranks(world_size, [this, world_size, &body](int rank) {
      ProcessGroup group = ProcessGroup::create(group_options(GetParam(), store_, rank, world_size));
      body(group);
      group.barrier();
    });
  }

  Store store_ = Store::inproc();

 private:
  // Composites: the members have hosts of their own, newcomers come to these hosts.
  const ImaginedHosts hosts_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Backends, GrowTest, testing::ValuesIn(built_backends()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Composites, GrowTest, testing::ValuesIn(composite_backends()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
});

TEST_P(GrowTest, NewcomersFollowTheMembersInTheOrderOfAsking) {
  Newcomer first(GetParam(), store_);
  await_newcomers(store_, 1);
  Newcomer second(GetParam(), store_);
  await_newcomers(store_, 2);
  std::thread members([this] {
    in_members(2, [this](ProcessGroup& group) {
      std::optional<ProcessGroup> grown = group.grow(store_);
      ASSERT_TRUE(grown);
      EXPECT_EQ(grown->rank(), group.rank());
      EXPECT_EQ(grown->world_size(), 4);
      EXPECT_EQ(grown->name(), "test-grown0");
      EXPECT_EQ(grown->global_rank(3), 3);
      EXPECT_EQ(grown->backend(), GetParam());
      expect_sum(*grown);
      expect_sum(group);
      grown->barrier();
    });
  });
  ProcessGroup third_rank = first.get();
  ProcessGroup fourth_rank = second.get();
  EXPECT_EQ(third_rank.rank(), 2);
  EXPECT_EQ(fourth_rank.rank(), 3);
  EXPECT_EQ(fourth_rank.name(), "test-grown0");
  std::thread third([&third_rank] {
    expect_sum(third_rank);
    third_rank.barrier();
  });
  expect_sum(fourth_rank);
  fourth_rank.barrier();
  third.join();
  members.join();
  EXPECT_EQ(store_.newcomers(), 0);
}

TEST_P(GrowTest, WithoutNewcomersTheGroupContinues) {
  in_members(3, [this](ProcessGroup& group) {
    for (int step = 0; step < 3; ++step) {
      std::string why;
      EXPECT_FALSE(group.grow(store_, kLongest, &why));
      EXPECT_NE(why.find("no process has asked to join"), std::string::npos) << why;
      expect_sum(group);
    }
    EXPECT_EQ(store_.newcomers(), 0);
  });
}

// The new group outlives the old one, and its subgroups, shrink and grow work.
TEST_P(GrowTest, AGrownGroupIsComplete) {
  Newcomer first(GetParam(), store_);
  await_newcomers(store_, 1);
  std::thread last;  // the second newcomer
  const auto body = [this, &last](ProcessGroup group) {
    expect_sum(group);
    EXPECT_NE(group.trace().find("test-grown0"), std::string::npos);
    ProcessGroup half = group.split(group.rank() % 2);
    expect_sum(half);
    ProcessGroup whole = group.shrink();
    expect_sum(whole);
    EXPECT_EQ(whole.name(), "test-grown0-shrunk0");
    if (whole.rank() == 0) {
      last = std::thread([this] {
        ProcessGroup own = Newcomer(GetParam(), store_).get();
        EXPECT_EQ(own.rank(), 3);
        expect_sum(own);
        own.barrier();
      });
      await_newcomers(store_, 1);
    }
    std::optional<ProcessGroup> larger = whole.grow(store_);
    ASSERT_TRUE(larger);
    EXPECT_EQ(larger->world_size(), 4);
    EXPECT_EQ(larger->name(), "test-grown1");
    expect_sum(*larger);
    larger->barrier();
  };
  std::thread members([this, &body] {
    on_ranks(2, [this, &body](int rank) {
      ProcessGroup group = ProcessGroup::create(group_options(GetParam(), store_, rank, 2));
      std::optional<ProcessGroup> grown = group.grow(store_);
      ASSERT_TRUE(grown);
      group.destroy();
      body(*std::move(grown));
    });
  });
  try {
    body(first.get());
  } catch (const Error& e) {
    ADD_FAILURE() << e.what();
  }
  members.join();
  if (last.joinable()) last.join();
}

TEST_P(GrowTest, NewcomersWithAnotherBackendAreRefused) {
  Newcomer other("self", store_);
  await_newcomers(store_, 1);
  Newcomer same(GetParam(), store_);
  await_newcomers(store_, 2);
  std::thread members([this] {
    in_members(2, [this](ProcessGroup& group) {
      std::optional<ProcessGroup> grown = group.grow(store_);
      ASSERT_TRUE(grown);
      EXPECT_EQ(grown->world_size(), 3);
      grown->barrier();
      std::string why;
      EXPECT_FALSE(group.grow(store_, kLongest, &why));
    });
  });
  std::string text;
  EXPECT_EQ(failure_of([&other] { other.get(); }, &text), Status::kInvalid);
  const std::string first = GetParam().substr(0, GetParam().find('+'));  // of a composite
  EXPECT_NE(text.find("chose backend self, the members of the group chose backend " + first), std::string::npos)
      << text;
  same.get().barrier();
  members.join();
}

TEST_P(GrowTest, ANewcomerThatNoGroupTakesWithdraws) {
  std::string text;
  Newcomer alone(GetParam(), store_, milliseconds(50));
  EXPECT_EQ(failure_of([&alone] { alone.get(); }, &text), Status::kTimeout);
  EXPECT_NE(text.find("no group took this process within"), std::string::npos) << text;
  EXPECT_EQ(store_.newcomers(), 0);
  in_members(2, [this](ProcessGroup& group) { EXPECT_FALSE(group.grow(store_)); });
}

// A newcomer that was taken but does not come: all members fail, the other newcomer asks again and is taken.
TEST_P(GrowTest, AfterAnAbsentNewcomerTheMembersTryAgain) {
  Newcomer present(GetParam(), store_);
  await_newcomers(store_, 1);
  const std::string identity_and_choices = store_.get("grow/ask/1");
  store_.set("grow/ask/99", identity_and_choices);
  store_.set("grow/waiting", "1:- 99:-");
  std::thread members([this] {
    in_members(2, [this](ProcessGroup& group) {
      std::string why;
      try {
        EXPECT_FALSE(group.grow(store_, milliseconds(500), &why));
      } catch (const Error& e) {
        EXPECT_EQ(e.status(), Status::kTimeout);
        why = e.what();
      }
      EXPECT_NE(why.find("rank 3 of 4 did not join"), std::string::npos) << why;
      expect_sum(group);
      if (group.rank() == 0) await_newcomers(store_, 1);
      group.barrier();
      std::optional<ProcessGroup> grown = group.grow(store_);
      ASSERT_TRUE(grown);
      EXPECT_EQ(grown->world_size(), 3);
      grown->barrier();
    });
  });
  present.get().barrier();
  members.join();
}

TEST_P(GrowTest, AMemberThatDoesNotCallItIsNamed) {
  in_members(2, [this](ProcessGroup& group) {
    if (group.rank() == 0) return;
    std::string text;
    EXPECT_EQ(failure_of([this, &group] { group.grow(store_, milliseconds(50)); }, &text), Status::kTimeout);
    EXPECT_NE(text.find("rank 0 did not call it within"), std::string::npos) << text;
  });
}

TEST_P(GrowTest, AnAbortEndsItForTheMembersOnly) {
  Newcomer newcomer(GetParam(), store_);
  await_newcomers(store_, 1);
  on_ranks(2, [this](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(GetParam(), store_, rank, 2));
    if (rank == 1) {
      Store(store_).wait({"grow/group/0/bp/join/rank/0", "grow/group/0/bp/join/rank/2"});
      return group.abort("enough");
    }
    std::string text;
    EXPECT_EQ(failure_of([this, &group] { group.grow(store_); }, &text), Status::kCancelled);
    EXPECT_NE(text.find("enough"), std::string::npos) << text;
  });
  await_newcomers(store_, 1);  // it asks again
  std::thread others([this] {
    in_members(1, [this](ProcessGroup& group) {
      std::optional<ProcessGroup> grown = group.grow(store_);
      ASSERT_TRUE(grown);
      EXPECT_EQ(grown->world_size(), 2);
      grown->barrier();
    });
  });
  newcomer.get().barrier();
  others.join();
}

#if defined(BACKPLANE_TEST_shm) && defined(BACKPLANE_TEST_gloo)
// The members have hosts of their own, newcomers come to these hosts.
TEST(GrowAutoTest, MembersAndNewcomersChooseAgain) {
  const ScopedVariable hosts("BACKPLANE_IMAGINED_HOSTS", "0,1,1,0");
  Store store = Store::inproc();
  Newcomer first("auto", store);
  Newcomer second("auto", store);
  await_newcomers(store, 2);
  const auto check = [](ProcessGroup& grown) {
    EXPECT_EQ(grown.world_size(), 4);
    EXPECT_EQ(grown.backend(), "shm+gloo");
    expect_sum(grown);
    grown.barrier();
  };
  std::thread members([&store, &check] {
    on_ranks(2, [&store, &check](int rank) {
      ProcessGroup group = ProcessGroup::create(group_options("auto", store, rank, 2));
      EXPECT_EQ(group.backend(), "gloo");
      std::optional<ProcessGroup> grown = group.grow(store);
      ASSERT_TRUE(grown);
      check(*grown);
    });
  });
  ProcessGroup third = first.get();
  ProcessGroup fourth = second.get();
  std::thread other([&third, &check] { check(third); });
  check(fourth);
  other.join();
  members.join();
}
#endif

// Only counters stay in the store.
TEST(GrowKeysTest, LeaveTheStore) {
  Store store = Store::inproc();
  const auto cycle = [&store] {
    Newcomer newcomer("inproc", store);
    await_newcomers(store, 1);
    std::thread members([&store] {
      on_ranks(2, [&store](int rank) {
        ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, 2));
        std::optional<ProcessGroup> grown = group.grow(store);
        ASSERT_TRUE(grown);
        EXPECT_FALSE(group.grow(store));
        grown->barrier();
      });
    });
    newcomer.get().barrier();
    members.join();
    Newcomer alone("inproc", store, milliseconds(20));
    failure_of([&alone] { alone.get(); });
  };
  cycle();
  const int64_t keys = store.num_keys();
  cycle();
  EXPECT_EQ(store.num_keys(), keys);
  EXPECT_LE(keys, 3);
}

TEST(GrowArgumentsTest, AreChecked) {
  std::string text;
  GroupOptions options;
  EXPECT_EQ(failure_of([&options] { ProcessGroup::join(options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("`config.store`"), std::string::npos) << text;
  options.store = Store::inproc();
  options.rank = 2;
  EXPECT_EQ(failure_of([&options] { ProcessGroup::join(options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("leave `rank` and `world_size` -1"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane::test
