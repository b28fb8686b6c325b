// SPDX-License-Identifier: Apache-2.0
//
// When ranks do not come together, all of them are told the same, and who it was.
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "support/environment.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

using std::chrono::seconds;

class WatchTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, WatchTest, testing::ValuesIn(built_backends()));

// Runs body(group) on each rank, without a word between the ranks at the end.
void in_breaking_group(const std::string& backend, int world_size, const std::function<void(ProcessGroup&)>& body) {
  const Store store = Store::inproc();
  on_ranks(world_size, [&](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(backend, store, rank, world_size));
    body(group);
  });
}

// What each rank's barrier said, and which rank it blamed.
struct Told {
  std::mutex mutex;
  std::map<int, std::string> texts;
  std::set<int> culprits;

  void note(int rank, const Error& error) {
    const std::lock_guard lock(mutex);
    texts[rank] = error.what();
    culprits.insert(error.peer_rank());
  }
};

TEST_P(WatchTest, NamesTheRankThatNeverCameOnAllOthers) {
  constexpr int kWorld = 3;
  constexpr int kLate = 1;
  Told told;
  in_breaking_group(GetParam(), kWorld, [&told](ProcessGroup& group) {
    std::vector<float> data(4, 1.0F);
    group.all_reduce(data);
    try {
      if (group.rank() != kLate) group.all_reduce(data, ReduceOp::kSum, {.timeout = seconds(1)});
      // The late one is told as well: its next operation does not begin.
      if (group.rank() == kLate) group.recv(data, 0, 7);
    } catch (const Error& error) {
      told.note(group.rank(), error);
    }
  });
  ASSERT_EQ(told.texts.size(), size_t{kWorld});
  EXPECT_EQ(told.culprits, std::set<int>{kLate});
  const std::string sentence = "never entered all_reduce sum (f32 x 4) #2";
  for (const auto& [rank, text] : told.texts) {
    EXPECT_NE(text.find("rank 1 ("), std::string::npos) << rank << ": " << text;
    EXPECT_NE(text.find(sentence), std::string::npos) << rank << ": " << text;
  }
}

TEST_P(WatchTest, ComparesSamplesWhileNothingFails) {
  Told told;
  in_breaking_group(GetParam(), 2, [&told](ProcessGroup& group) {
    std::vector<float> four(4, 1.0F);
    std::vector<uint8_t> bytes(16);
    try {
      // As many bytes, yet not the same: only shm notices, and only that they differ.
      if (group.rank() == 0) group.broadcast(four, 0);
      if (group.rank() == 1) group.broadcast(bytes, 0);
      group.recv(bytes, 1 - group.rank(), 7);
    } catch (const Error& error) {
      told.note(group.rank(), error);
    }
  });
  ASSERT_EQ(told.texts.size(), size_t{2});
  for (const auto& [rank, text] : told.texts) {
    EXPECT_NE(text.find("broadcast (f32 x 4) with root 0"), std::string::npos) << rank << ": " << text;
    EXPECT_NE(text.find("broadcast (u8 x 16) with root 0"), std::string::npos) << rank << ": " << text;
  }
}

TEST_P(WatchTest, WritesTracesWhenAGroupBreaksAndOnRequest) {
  const ScopedDirectory directory;
  const ScopedVariable variable("BACKPLANE_TRACE_DIR", directory.path().string());
  const auto path = [&directory](int rank) { return directory.path() / ("0.rank" + std::to_string(rank) + ".json"); };
  const auto wait_for_file = [](const std::filesystem::path& file) {
    for (int i = 0; i < 1000 && !std::filesystem::exists(file); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return std::filesystem::exists(file);
  };
  in_breaking_group(GetParam(), 2, [&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) std::ofstream(directory.path() / "request") << "please\n";
    EXPECT_TRUE(wait_for_file(path(group.rank())));
    group.barrier();
    std::filesystem::remove(path(group.rank()));
    group.barrier();
    group.abort("for the trace");
    EXPECT_TRUE(wait_for_file(path(group.rank())));
  });
  std::ifstream file(path(1));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("for the trace"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane::test
