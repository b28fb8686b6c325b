// SPDX-License-Identifier: Apache-2.0
//
// What the start of a group asks of the store: a rank asks as much in a large world as in a small one.
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "support/groups.hpp"

namespace backplane::test {
namespace {

// The different requests of all ranks. A request that is repeated, because it waits or polls, counts once.
class Requests {
 public:
  void note(int rank, const std::string& operation, const std::string& key) {
    if (counts_with_time(key)) return;
    const std::lock_guard lock(mutex_);
    made_.insert(std::to_string(rank) + " " + operation + " " + key);
  }
  // Of all ranks.
  int count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(made_.size());
  }

 private:
  // The reporter and the comparison of collectives ask while the group runs.
  static bool counts_with_time(const std::string& key) {
    return key.find("reporter/") != std::string::npos || key.find("fingerprint/") != std::string::npos;
  }

  mutable std::mutex mutex_;
  std::set<std::string> made_;  // guarded by mutex_
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

// The requests of a rank, on average, until all ranks have their groups.
int requests_of_start(const std::string& backend, int world_size) {
  const Store space = Store::inproc();
  Requests requests;
  MeetingPoint started(world_size);
  std::atomic<int> count = 0;
  on_ranks(world_size, [&](int rank) {
    const Store store = noted(space, rank, requests);
    std::optional<ProcessGroup> group;
    started.after([&] { group.emplace(ProcessGroup::create(group_options(backend, store, rank, world_size))); });
    started.after([&] { count = requests.count(); });  // before a rank leaves, which also asks
  });
  return count / world_size;
}

class StartRequestsTest : public testing::TestWithParam<std::string> {};

std::vector<std::string> backends_and_auto() {
  std::vector<std::string> names = built_backends();
  if (names.size() > 1) names.emplace_back("auto");
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, StartRequestsTest, testing::ValuesIn(backends_and_auto()));

TEST_P(StartRequestsTest, DoNotGrowWithTheWorld) {
  constexpr int kFew = 4;
  constexpr int kMany = 24;
  constexpr int kVariation = 6;  // where ranks poll, and where groups of different sizes start differently
  const int few = requests_of_start(GetParam(), kFew);
  const int many = requests_of_start(GetParam(), kMany);
  EXPECT_GE(few, 8);  // those of joining, at least
  EXPECT_LE(few, 30);
  EXPECT_LE(many, few + kVariation);  // one request for each other rank would be 20 more
}

}  // namespace
}  // namespace backplane::test
