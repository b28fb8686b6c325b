// SPDX-License-Identifier: Apache-2.0
//
// The keys of ended groups leave the store.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "support/environment.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

// Handles of one store, one per rank.
class Handles {
 public:
  explicit Handles(const std::string& kind) : kind_(kind) {
    if (kind == "tcp") server_ = std::make_unique<StoreServer>();
    if (kind != "file") return;
    directory_.emplace();
  }

  Store open() {
    if (kind_ == "tcp") return Store::connect("127.0.0.1", server_->port());
    if (kind_ == "file") return Store::file(directory_->path() / "store");
    return inproc_;
  }

 private:
  const std::string kind_;
  std::unique_ptr<StoreServer> server_;
  std::optional<ScopedDirectory> directory_;
  Store inproc_ = Store::inproc();
};

class EndedGroups : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  int world_size() const { return std::get<1>(GetParam()); }
  // Runs body(group, store) on each rank of a group.
  void in_group(const std::function<void(ProcessGroup&, Store&)>& body) {
    on_ranks(world_size(), [this, &body](int rank) {
      Store store = handles_.open();
      ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, world_size()));
      body(group, store);
      group.barrier();
      group.destroy();
    });
  }

  const ScopedVariable fingerprint_{"BACKPLANE_FINGERPRINT", "off"};  // it has a key, of the group that goes on
  Handles handles_{std::get<0>(GetParam())};
};

INSTANTIATE_TEST_SUITE_P(Stores, EndedGroups,
                         testing::Combine(testing::Values("inproc", "tcp", "file"), testing::Values(2, 8)),
                         backend_test_name);

TEST_P(EndedGroups, LeaveNoKeys) {
  const int rounds = std::get<0>(GetParam()) == "file" && world_size() > 2 ? 5 : 50;
  int64_t before = 0;
  in_group([&](ProcessGroup& group, Store& store) {
    std::vector<int32_t> all(static_cast<size_t>(group.world_size()));
    std::iota(all.begin(), all.end(), 0);
    group.barrier();
    if (group.rank() == 0) before = store.num_keys();
    for (int round = 0; round < rounds; ++round) {
      group.barrier();
      ProcessGroup made = group.new_group(all, "again");  // the same name each time
      ProcessGroup half = group.split(group.rank() % 2, 0);
      ProcessGroup quarter = half.split(half.rank() % 2 == 0 ? 0 : -1, 0);
      made.destroy();
      half.destroy();  // and the group made from it
    }
    group.barrier();
    const int64_t after = group.rank() == 0 ? store.num_keys() : before;
    EXPECT_EQ(after, before) << "after " << rounds << " rounds";
  });
  EXPECT_EQ(handles_.open().num_keys(), std::get<0>(GetParam()) == "file" ? 1 : 0);  // the number of lock bytes in use
}

TEST_P(EndedGroups, KeepTheirKeysUntilTheLastRankLeaves) {
  int64_t alone = 0;
  in_group([&](ProcessGroup& group, Store& store) {
    group.barrier();
    if (group.rank() == 0) alone = store.num_keys();
    group.barrier();
    ProcessGroup made = group.new_group({0, 1}, "pair");
    if (group.rank() == 1) made.destroy();
    group.barrier();
    if (group.rank() == 0) {
      EXPECT_GT(store.num_keys(), alone);
      made.destroy();
      EXPECT_EQ(store.num_keys(), alone);
    }
  });
}

// A group made by shrink outlives its parent.
TEST_P(EndedGroups, KeepTheKeysOfAShrunkGroup) {
  on_ranks(world_size(), [this](int rank) {
    Store store = handles_.open();
    ProcessGroup group = ProcessGroup::create(group_options("inproc", store, rank, world_size()));
    ProcessGroup shrunk = group.shrink();
    group.destroy();
    shrunk.barrier();
    ProcessGroup made = shrunk.split(0, 0);
    made.barrier();
    EXPECT_EQ(made.world_size(), world_size());
    shrunk.destroy();
  });
  EXPECT_EQ(handles_.open().num_keys(), std::get<0>(GetParam()) == "file" ? 1 : 0);
}

}  // namespace
}  // namespace backplane::test
