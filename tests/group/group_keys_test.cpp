// SPDX-License-Identifier: Apache-2.0
#include "group/group_keys.hpp"

#include "rendezvous/rendezvous.hpp"
#include "store/raw_socket.hpp"
#include "store/store_fixture.hpp"
#include "store/wire.hpp"
#include "support/eventually.hpp"

namespace backplane::core {
namespace {

class GroupKeysTest : public testing::Test {
 protected:
  struct Rank {
    std::shared_ptr<Store> store;
    std::shared_ptr<FailureDetector> detector;
    std::unique_ptr<GroupKeys> keys;
  };
  Rank enter(int32_t rank) const {
    TcpStoreOptions options;
    options.port = server_->port();
    Rank made;
    made.store = make_tcp_store(options, soon());
    made.detector = FailureDetector::enroll(*made.store, rank, soon());
    const auto own = make_prefix_store(made.store, "group/1/");
    own->set(kJoinedKey, "complete", soon());
    own->set("rank/" + std::to_string(rank), "", soon());
    made.keys = std::make_unique<GroupKeys>(own, rank, std::vector<int32_t>{0, 1, 2}, made.detector);
    return made;
  }
  // A rank whose process ends; `more`: its requests before.
  void lose(int32_t rank, const std::string& more = "") const {
    RawClient(server_->port(),
              encode(Hello{}) + encode(StoreRequest{1, RequestKind::kEnroll, rank, {"", "host, pid 9"}}) + more);
  }
  static void await_loss(const Rank& rank) {
    EXPECT_TRUE(test::eventually([&rank] { return !rank.detector->lost_among({0, 1, 2}).empty(); }));
  }

  std::unique_ptr<TcpStoreServer> server_ = make_tcp_store_server({});
};

TEST_F(GroupKeysTest, TheLastRankRemovesThem) {
  Rank first = enter(0);
  Rank second = enter(1);
  Rank third = enter(2);
  third.store->set("group/10", "", soon());
  first.keys.reset();
  second.keys.reset();
  EXPECT_TRUE(third.store->check({"group/1/rank/0", "group/1/rank/1", "group/1/rank/2"}, soon()));
  third.keys.reset();
  EXPECT_EQ(third.store->num_keys(soon()), 1);
}

TEST_F(GroupKeysTest, ALostRankIsNotAwaited) {
  Rank first = enter(0);
  Rank second = enter(1);
  first.keys.reset();
  lose(2);
  await_loss(second);
  second.keys.reset();
  EXPECT_EQ(second.store->num_keys(soon()), 0);
}

// Its connection is not the one that was lost.
TEST_F(GroupKeysTest, ARankThatIsLostButLivesOnLeavesNoKeys) {
  Rank first = enter(0);
  Rank second = enter(1);
  lose(2);
  await_loss(first);
  await_loss(second);
  auto lost = std::make_unique<GroupKeys>(make_prefix_store(first.store, "group/1/"), 2, std::vector<int32_t>{0, 1, 2},
                                          nullptr);
  first.keys.reset();
  second.keys.reset();
  EXPECT_EQ(second.store->num_keys(soon()), 0);
  lost.reset();
  EXPECT_EQ(second.store->num_keys(soon()), 0);
}

TEST_F(GroupKeysTest, ARankThatLeftAndIsLostLaterCountsOnce) {
  Rank first = enter(0);
  Rank second = enter(1);
  lose(2, encode(StoreRequest{2, RequestKind::kSet, 0, {"group/1/bp/left/2", ""}}) +
              encode(StoreRequest{3, RequestKind::kAdd, 1, {"group/1/bp/left"}}));
  await_loss(first);
  await_loss(second);
  first.keys.reset();
  EXPECT_TRUE(second.store->check({"group/1/rank/1"}, soon())) << "the second rank still needs them";
  second.keys.reset();
  EXPECT_EQ(second.store->num_keys(soon()), 0);
}

}  // namespace
}  // namespace backplane::core
