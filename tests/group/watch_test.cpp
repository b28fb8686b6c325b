// SPDX-License-Identifier: Apache-2.0
//
// Ranks in different collectives: all ranks get the same error, which names the rank at fault.
#include <barrier>
#include <fstream>
#include <latch>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "backplane/registry.hpp"
#include "programs/noop_backend.hpp"
#include "support/environment.hpp"
#include "support/eventually.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

using std::chrono::seconds;

class WatchTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, WatchTest, testing::ValuesIn(built_backends()));

// Runs body(group) on each rank, without communication at the end.
void in_breaking_group(const std::string& backend, int world_size, const std::function<void(ProcessGroup&)>& body) {
  const Store store = Store::inproc();
  on_ranks(world_size, [&](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options(backend, store, rank, world_size));
    body(group);
  });
}

// The errors of the ranks, and the ranks that they name.
struct Reports {
  std::mutex mutex;
  std::map<int, std::string> texts;
  std::set<int> named_ranks;

  void add(int rank, const Error& error) {
    const std::lock_guard lock(mutex);
    texts[rank] = error.what();
    named_ranks.insert(error.peer_rank());
  }
};

TEST_P(WatchTest, AllRanksNameTheMissingRank) {
  constexpr int kWorld = 3;
  constexpr int kLate = 1;
  Reports reports;
  std::latch begun(2);  // the other ranks have left the first operation, and rank 2 is in the second
  in_breaking_group(GetParam(), kWorld, [&reports, &begun](ProcessGroup& group) {
    std::vector<float> data(4, 1.0F);
    group.all_reduce(data);
    try {
      if (group.rank() == 0) {
        EXPECT_TRUE(eventually([&begun] { return begun.try_wait(); }));
        // A tenth of the timeout is the time in which the others must tell where they are.
        group.all_reduce(data, ReduceOp::kSum, {.timeout = seconds(5)});
      } else if (group.rank() == kLate) {
        begun.count_down();
        group.recv(data, 0, 7);  // the late rank gets the same error from its next operation
      } else {
        Work work = group.all_reduce(data, ReduceOp::kSum, {.async_op = true});
        begun.count_down();
        work.wait();
      }
    } catch (const Error& error) {
      reports.add(group.rank(), error);
    }
  });
  ASSERT_EQ(reports.texts.size(), size_t{kWorld});
  EXPECT_EQ(reports.named_ranks, std::set<int>{kLate});
  const std::string sentence = "never entered all_reduce sum (f32 x 4) #2";
  for (const auto& [rank, text] : reports.texts) {
    EXPECT_NE(text.find("rank 1 ("), std::string::npos) << rank << ": " << text;
    EXPECT_NE(text.find(sentence), std::string::npos) << rank << ": " << text;
  }
}

constexpr seconds kMismatchLimit{10};  // of operations that a comparison ends before

// Operations of two ranks at the same time, and their descriptions.
struct Mismatch {
  std::function<void(ProcessGroup&)> calls[2];
  const char* words[2];
};

// The operations have equal sizes if possible, so that few backends detect the mismatch.
std::vector<Mismatch> mismatches() {
  const auto sum = [](size_t count, ReduceOp op) {
    return [count, op](ProcessGroup& group) {
      std::vector<float> data(count, 1.0F);
      group.all_reduce(data, op, {.timeout = kMismatchLimit});
    };
  };
  const auto share = [](auto value, size_t count, int root) {
    return [value, count, root](ProcessGroup& group) {
      std::vector data(count, value);
      group.broadcast(data, root, {.timeout = kMismatchLimit});
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

// Expects the same sentence, which describes both operations, on all ranks. `at_once`: before they begin.
void expect_named(const Mismatch& mismatch, const std::string& backend, bool at_once) {
  Reports reports;
  in_breaking_group(backend, 2, [&reports, &mismatch, at_once](ProcessGroup& group) {
    try {
      mismatch.calls[group.rank()](group);
      EXPECT_FALSE(at_once) << "rank " << group.rank() << " was not stopped at " << mismatch.words[group.rank()];
      std::vector<uint8_t> nothing(1);
      group.recv(nothing, 1 - group.rank(), 7);  // the first may have succeeded
    } catch (const Error& error) {
      reports.add(group.rank(), error);
    }
  });
  ASSERT_EQ(reports.texts.size(), size_t{2}) << mismatch.words[0];
  const size_t verb = std::min(reports.texts[0].find(" entered "), reports.texts[0].size());
  const size_t begin = reports.texts[0].rfind("rank ", verb);
  // A rank that timed out adds its timeout.
  const size_t end = std::min(reports.texts[0].find(" (after ", verb), reports.texts[0].size());
  const std::string sentence = reports.texts[0].substr(begin, end - begin);
  for (const char* words : mismatch.words) EXPECT_NE(sentence.find(words), std::string::npos) << reports.texts[0];
  EXPECT_NE(reports.texts[1].find(sentence), std::string::npos) << reports.texts[1] << "\nbut " << reports.texts[0];
  EXPECT_EQ(reports.named_ranks.size(), size_t{1});
}

// Differences in operation, dtype, count, root and reduce operation, each in its own job, all at the same time.
void expect_all_named(const std::string& backend, bool at_once) {
  std::vector<std::thread> jobs;
  for (const Mismatch& mismatch : mismatches()) {
    jobs.emplace_back([mismatch, &backend, at_once] { expect_named(mismatch, backend, at_once); });
  }
  for (std::thread& job : jobs) job.join();
}

TEST_P(WatchTest, NamesAMismatchFromASample) { expect_all_named(GetParam(), false); }

TEST_P(WatchTest, NamesAMismatchBeforeTheOperationsBegin) {
  const ScopedVariable variable("BACKPLANE_FINGERPRINT", "always");
  expect_all_named(GetParam(), true);
}

// No rank gets the result of another operation, also before the ranks are compared.
TEST_P(WatchTest, MismatchedOperationsDoNotExchangeData) {
  using Call = std::function<void(ProcessGroup&)>;
  const CallOptions limit = {.timeout = seconds(1)};
  const auto reduce = [limit](auto value, ReduceOp op, size_t count = 4) -> Call {
    return [=](ProcessGroup& group) {
      std::vector data(count, value);
      group.all_reduce(data, op, limit);
    };
  };
  const auto gather = [limit](auto value, size_t count) -> Call {
    return [=](ProcessGroup& group) {
      std::vector mine(count, value), all(2 * count, value);
      group.all_gather(mine, all, limit);
    };
  };
  const std::pair<Call, Call> mismatched[] = {
      {reduce(1.0F, ReduceOp::kSum), reduce(1.0F, ReduceOp::kMax)},
      {reduce(1.0F, ReduceOp::kSum), reduce(1, ReduceOp::kSum)},
      {reduce(1.0F, ReduceOp::kSum), gather(1.0F, 4)},
      {gather(1.0F, 4), gather(1, 4)},
      {gather(1.0F, 4), gather(1.0, 2)},
      {reduce(1.0F, ReduceOp::kSum, 4), reduce(1.0F, ReduceOp::kSum, 5)},
  };
  std::vector<std::thread> jobs;
  for (const auto& [first, second] : mismatched) {
    jobs.emplace_back([this, &first = first, &second = second] {
      in_breaking_group(GetParam(), 2,
                        [&](ProcessGroup& group) { failure_of([&] { (group.rank() == 0 ? first : second)(group); }); });
    });
  }
  for (std::thread& job : jobs) job.join();
}

// A backend that compares nothing, and completes operations at once.
void add_unchecked_backend() {
  static const bench::NoopBackend noop;
  static bp_backend backend = noop.descriptor();
  backend.id = "unchecked";
  backend.init = [](const bp_backend*, const bp_init* request, bp_agent* agent, bp_error*) {
    static const bp_process_group_api api = [] {
      bp_process_group_api made = bench::NoopBackend::table();
      made.submit = [](void*, const bp_op*, bp_work**, bp_error*) { return int32_t{BP_OK}; };
      return made;
    }();
    agent->kind = BP_KIND_PROCESS_GROUP;
    agent->api = &api;
    agent->self = nullptr;
    agent->rank = request->rank;
    agent->world_size = request->world_size;
    return int32_t{BP_OK};
  };
  detail::call(bp_register_backend, static_cast<bp_registry*>(nullptr), static_cast<const bp_backend*>(&backend),
               static_cast<const bp_backend_type**>(nullptr));
}

// The ranks compare an operation that one of them has announced, because they compare at different times and do not
// pause.
TEST(SampledWatchTest, NamesAMismatchOfGroupsThatDoNotPause) {
  add_unchecked_backend();
  std::barrier together(2);
  Reports reports;
  const Store store = Store::inproc();
  on_ranks(2, [&](int rank) {
    ProcessGroup group = ProcessGroup::create(group_options("unchecked", store, rank, 2));
    const ReduceOp op = rank == 0 ? ReduceOp::kSum : ReduceOp::kMax;
    const auto limit = std::chrono::steady_clock::now() + seconds(60);
    std::vector<float> data(4, 1.0F);
    try {
      while (std::chrono::steady_clock::now() < limit) {
        group.all_reduce(data, op);
        together.arrive_and_wait();
      }
    } catch (const Error& error) {
      reports.add(rank, error);
      EXPECT_TRUE(Store(store).check({"group/test/0/fingerprint/next"})) << "found by chance";
    }
    together.arrive_and_drop();
  });
  ASSERT_EQ(reports.texts.size(), size_t{2});
  for (const auto& [rank, text] : reports.texts) {
    EXPECT_NE(text.find("entered all_reduce sum (f32 x 4)"), std::string::npos) << rank << ": " << text;
    EXPECT_NE(text.find("all_reduce max (f32 x 4)"), std::string::npos) << rank << ": " << text;
  }
}

// Ranks that compare write to the store, also during a pause. The pause of the group without comparison begins before
// that of the other group.
TEST_P(WatchTest, ComparesNothingIfOff) {
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

// Also if the ranks wait for each other in a message, whose backend sees only that a connection breaks.
TEST_P(WatchTest, AllRanksReadTheReasonOfAnAbort) {
  constexpr int kWorld = 3;
  Reports reports;
  in_breaking_group(GetParam(), kWorld, [&reports](ProcessGroup& group) {
    std::vector<float> data(4, 1.0F);
    if (group.rank() == 1) return group.abort("the input file is malformed");
    try {
      if (group.rank() == 0) group.recv(data, 1, 7);
      if (group.rank() == 2) group.all_reduce(data);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kCancelled) << error.what();
      reports.add(group.rank(), error);
    }
    try {
      group.barrier();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 aborted the group: the input file is malformed"),
                std::string::npos)
          << error.what();
    }
  });
  ASSERT_EQ(reports.texts.size(), size_t{kWorld - 1});
  EXPECT_EQ(reports.named_ranks, std::set<int>{1});
  for (const auto& [rank, text] : reports.texts) {
    EXPECT_NE(text.find("rank 1 aborted the group: the input file is malformed"), std::string::npos) << text;
  }
}

TEST_P(WatchTest, WritesTracesWhenAGroupBreaksAndOnRequest) {
  const ScopedDirectory directory;
  const ScopedVariable variable("BACKPLANE_TRACE_DIR", directory.path().string());
  const auto path = [&directory](int rank) { return directory.path() / ("0.rank" + std::to_string(rank) + ".json"); };
  const auto is_written = [](const std::filesystem::path& file) {
    return eventually([&file] { return std::filesystem::exists(file); });
  };
  BarrierLeftByAll barrier(2);
  in_breaking_group(GetParam(), 2, [&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) std::ofstream(directory.path() / "request") << "please\n";
    EXPECT_TRUE(is_written(path(group.rank()))) << "nothing was written on request";
    group.barrier();
    std::filesystem::remove(path(group.rank()));
    barrier(group);
    group.abort("for the trace");
    EXPECT_TRUE(is_written(path(group.rank()))) << "nothing was written when the group broke";
  });
  std::ifstream file(path(1));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("for the trace"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane::test
