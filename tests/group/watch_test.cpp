// SPDX-License-Identifier: Apache-2.0
//
// When ranks do not come together, all of them are told the same, and who it was.
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "support/environment.hpp"
#include "support/eventually.hpp"
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

// What two ranks do at the same time, and how it is called.
struct Mismatch {
  std::function<void(ProcessGroup&)> calls[2];
  const char* words[2];
};

// As many bytes as can be, so that few backends would notice.
std::vector<Mismatch> mismatches() {
  const auto sum = [](size_t count, ReduceOp op) {
    return [count, op](ProcessGroup& group) {
      std::vector<float> data(count, 1.0F);
      group.all_reduce(data, op, {.timeout = seconds(2)});
    };
  };
  const auto share = [](auto value, size_t count, int root) {
    return [value, count, root](ProcessGroup& group) {
      std::vector data(count, value);
      group.broadcast(data, root, {.timeout = seconds(2)});
    };
  };
  return {
      {{sum(4, ReduceOp::kSum), share(1.0F, 4, 0)}, {"all_reduce sum (f32 x 4)", "broadcast (f32 x 4) with root 0"}},
      {{share(1.0F, 4, 0), share(uint8_t{1}, 16, 0)},
       {"broadcast (f32 x 4) with root 0", "broadcast (u8 x 16) with root 0"}},
      {{sum(4, ReduceOp::kSum), sum(8, ReduceOp::kSum)}, {"all_reduce sum (f32 x 4)", "all_reduce sum (f32 x 8)"}},
      {{share(1.0F, 4, 0), share(1.0F, 4, 1)}, {"broadcast (f32 x 4) with root 0", "broadcast (f32 x 4) with root 1"}},
      {{sum(4, ReduceOp::kSum), sum(4, ReduceOp::kMax)}, {"all_reduce sum (f32 x 4)", "all_reduce max (f32 x 4)"}},
  };
}

// All ranks get the same sentence, which says what each did. `at_once`: before any of it is done.
void expect_named(const Mismatch& mismatch, const std::string& backend, bool at_once) {
  Told told;
  in_breaking_group(backend, 2, [&told, &mismatch, at_once](ProcessGroup& group) {
    try {
      mismatch.calls[group.rank()](group);
      EXPECT_FALSE(at_once) << "rank " << group.rank() << " was let through " << mismatch.words[group.rank()];
      std::vector<uint8_t> nothing(1);
      group.recv(nothing, 1 - group.rank(), 7);  // the first went well, or so it seems
    } catch (const Error& error) {
      told.note(group.rank(), error);
    }
  });
  ASSERT_EQ(told.texts.size(), size_t{2}) << mismatch.words[0];
  const size_t verb = std::min(told.texts[0].find(" entered "), told.texts[0].size());
  const size_t begin = told.texts[0].rfind("rank ", verb);
  // A rank whose time was over as well says after how long.
  const size_t end = std::min(told.texts[0].find(" (after ", verb), told.texts[0].size());
  const std::string sentence = told.texts[0].substr(begin, end - begin);
  for (const char* words : mismatch.words) EXPECT_NE(sentence.find(words), std::string::npos) << told.texts[0];
  EXPECT_NE(told.texts[1].find(sentence), std::string::npos) << told.texts[1] << "\nbut " << told.texts[0];
  EXPECT_EQ(told.culprits.size(), size_t{1});
}

// Operation, dtype, count, root and reduce operation, each in a job of its own and all at the same time.
void expect_all_named(const std::string& backend, bool at_once) {
  std::vector<std::thread> jobs;
  for (const Mismatch& mismatch : mismatches()) {
    jobs.emplace_back([mismatch, &backend, at_once] { expect_named(mismatch, backend, at_once); });
  }
  for (std::thread& job : jobs) job.join();
}

TEST_P(WatchTest, NamesAMismatchFromASample) { expect_all_named(GetParam(), false); }

TEST_P(WatchTest, NamesAMismatchBeforeAnythingIsDone) {
  const ScopedVariable variable("BACKPLANE_FINGERPRINT", "always");
  expect_all_named(GetParam(), true);
}

// Ranks that compare leave in the store what they compare, also once they rest. The group that is told not to rests for
// longer than one that does.
TEST_P(WatchTest, ComparesNothingIfToldSo) {
  const char* const compared = "group/test/0/fingerprint/0";
  const auto at_rest = [this](const Store& store) {
    std::vector<std::optional<ProcessGroup>> ranks(2);
    on_ranks(2, [this, &store, &ranks](int rank) {
      auto& group = ranks[static_cast<size_t>(rank)];
      group.emplace(ProcessGroup::create(group_options(GetParam(), store, rank, 2)));
      group->barrier();
    });
    return ranks;
  };
  Store silent = Store::inproc();
  std::optional<ScopedVariable> variable(std::in_place, "BACKPLANE_FINGERPRINT", "off");
  const auto does_not = at_rest(silent);
  variable.reset();
  Store telling = Store::inproc();
  const auto does = at_rest(telling);
  telling.wait({compared}, seconds(60));
  EXPECT_FALSE(silent.check({compared}));
}

TEST_P(WatchTest, WritesTracesWhenAGroupBreaksAndOnRequest) {
  const ScopedDirectory directory;
  const ScopedVariable variable("BACKPLANE_TRACE_DIR", directory.path().string());
  const auto path = [&directory](int rank) { return directory.path() / ("0.rank" + std::to_string(rank) + ".json"); };
  const auto is_written = [](const std::filesystem::path& file) {
    return eventually([&file] { return std::filesystem::exists(file); });
  };
  in_breaking_group(GetParam(), 2, [&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) std::ofstream(directory.path() / "request") << "please\n";
    EXPECT_TRUE(is_written(path(group.rank()))) << "nothing was written on request";
    group.barrier();
    std::filesystem::remove(path(group.rank()));
    group.barrier();
    group.abort("for the trace");
    EXPECT_TRUE(is_written(path(group.rank()))) << "nothing was written when the group broke";
  });
  std::ifstream file(path(1));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("for the trace"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane::test
