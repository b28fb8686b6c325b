// SPDX-License-Identifier: Apache-2.0
//
// What the start of a group asks of the store. Beside what a mesh needs, a rank asks as much in a large world as in a
// small one.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

// The different requests of each rank. A request that is repeated, because it waits or polls, counts once.
class Requests {
 public:
  void note(int rank, const std::string& operation, const std::string& key) {
    if (counts_with_time(key)) return;
    const std::lock_guard lock(mutex_);
    made_[rank].insert(operation + " " + key);
  }
  // Of the rank that made the most.
  int most() const {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    for (const auto& [rank, made] : made_) count = std::max(count, made.size());
    return static_cast<int>(count);
  }

 private:
  // The reporter and the comparison of collectives ask while the group runs.
  static bool counts_with_time(const std::string& key) {
    return key.find("reporter/") != std::string::npos || key.find("fingerprint/") != std::string::npos;
  }

  mutable std::mutex mutex_;
  std::map<int, std::set<std::string>> made_;  // by rank; guarded by mutex_
};

// The store of one rank: that of all ranks, with its requests noted.
Store noted(Store space, int rank, Requests& requests) {
  StoreCallbacks callbacks;
  callbacks.name = "test://noted";
  callbacks.set = [=, &requests](const std::string& key, std::string_view value, Timeout timeout) mutable {
    requests.note(rank, "set", key);
    space.set(key, value, timeout);
  };
  callbacks.get = [=, &requests](const std::string& key, Timeout timeout) mutable -> std::optional<std::string> {
    requests.note(rank, "get", key);
    return space.get(key, timeout);
  };
  callbacks.add = [=, &requests](const std::string& key, int64_t delta, Timeout timeout) mutable {
    requests.note(rank, "add", key);
    return space.add(key, delta, timeout);
  };
  callbacks.compare_set = [=, &requests](const std::string& key, std::string_view expected, std::string_view desired,
                                         Timeout timeout) mutable {
    requests.note(rank, "compare_set", key);
    return space.compare_set(key, expected, desired, timeout);
  };
  callbacks.remove = [=, &requests](const std::string& key, Timeout timeout) mutable {
    requests.note(rank, "remove", key);
    return space.remove(key, timeout);
  };
  return Store::custom(callbacks);
}

// The requests of the busiest rank until all ranks have their groups.
int requests_of_start(const std::string& backend, int world_size) {
  const Store space = Store::inproc();
  Requests requests;
  MeetingPoint started(world_size);
  std::atomic<int> count = 0;
  on_ranks(world_size, [&](int rank) {
    const Store store = noted(space, rank, requests);
    std::optional<ProcessGroup> group;
    started.after([&] { group.emplace(ProcessGroup::create(group_options(backend, store, rank, world_size))); });
    started.after([&] { count = requests.most(); });  // before a rank leaves, which also asks
  });
  return count;
}

class StartRequestsTest : public testing::TestWithParam<std::string> {};

std::vector<std::string> backends_and_auto() {
  std::vector<std::string> names = built_backends();
  if (names.size() > 1) names.emplace_back("auto");
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, StartRequestsTest, testing::ValuesIn(backends_and_auto()));

TEST_P(StartRequestsTest, DoNotGrowWithTheWorldBesideThoseOfAMesh) {
  constexpr int kFew = 4;
  constexpr int kMany = 24;
  // The first rank and the last one to come do more than others. Where ranks poll, their number depends on time.
  constexpr int kOfRoles = 12;
  const int few = requests_of_start(GetParam(), kFew);
  const int many = requests_of_start(GetParam(), kMany);
  EXPECT_LE(few, 30 + kOfRoles);
  // gloo makes a mesh when it starts: each rank reads the addresses of each other one.
  const int of_mesh = GetParam() == "gloo" ? kMany - kFew : 0;
  EXPECT_LE(many, few + of_mesh + kOfRoles);
  EXPECT_GE(few, 8);  // all requests of joining are counted
}

}  // namespace
}  // namespace backplane::test
