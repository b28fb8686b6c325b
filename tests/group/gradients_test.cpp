// SPDX-License-Identifier: Apache-2.0
#include "backplane/gradients.hpp"

#include <atomic>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "group/other_memory.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

using GradientsTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, GradientsTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2, 3, 4)),
                         backend_test_name);

TEST_P(GradientsTest, RoundsOfSeveralDtypesInManyPacks) {
  in_group([](ProcessGroup& group) {
    GradientReducer reducer(group, {.pack_bytes = 1000});
    const int64_t world = group.world_size();
    for (int64_t round = 1; round <= 3; ++round) {
      std::vector<std::vector<float>> floats;
      std::vector<std::vector<int64_t>> integers;
      for (int64_t i = 0; i < 20; ++i) {
        floats.emplace_back(static_cast<size_t>(1 + 37 * i), static_cast<float>(i));
        integers.emplace_back(static_cast<size_t>(1 + 11 * i), i * round);
      }
      std::vector<ReducedGradient> reduced;
      for (size_t i = 0; i < floats.size(); ++i) {
        reduced.push_back(reducer.add("float" + std::to_string(i), floats[i]));
        reduced.push_back(reducer.add("integer" + std::to_string(i), integers[i]));
      }
      reducer.finish();
      for (const ReducedGradient& gradient : reduced) EXPECT_TRUE(gradient.is_completed()) << gradient.parameter();
      for (int64_t i = 0; i < 20; ++i) {
        EXPECT_EQ(floats[static_cast<size_t>(i)],
                  std::vector<float>(static_cast<size_t>(1 + 37 * i), static_cast<float>(i * world)));
        EXPECT_EQ(integers[static_cast<size_t>(i)],
                  std::vector<int64_t>(static_cast<size_t>(1 + 11 * i), i * round * world));
      }
    }
  });
}

TEST_P(GradientsTest, TheMeanIsTheSumDividedByTheRanks) {
  in_group([](ProcessGroup& group) {
    GradientReducer reducer(group, {.method = ReduceMethod::kMean});
    double gradient = group.rank();
    const ReducedGradient reduced = reducer.add("w", as_buffer(gradient));
    reducer.flush();
    EXPECT_EQ(reduced.wait().data(), &gradient);
    EXPECT_DOUBLE_EQ(gradient, (group.world_size() - 1) / 2.0);
  });
}

TEST_P(GradientsTest, AFullPackIsSentDuringTheRound) {
  in_group([](ProcessGroup& group) {
    GradientReducer reducer(group);
    std::vector<float> small(1000, 1);
    std::vector<float> large(10 * 1024 * 1024 / sizeof(float), 2);  // with `small` it is more than 10 MiB
    const ReducedGradient first = reducer.add("small", small);
    EXPECT_FALSE(first.is_completed());
    const ReducedGradient second = reducer.add("large", large);
    first.wait();
    second.wait();
    EXPECT_EQ(small.back(), group.world_size());
    EXPECT_EQ(large.back(), 2 * group.world_size());
    // The caller's group remains usable.
    int sum = 1;
    group.all_reduce(as_buffer(sum));
    EXPECT_EQ(sum, group.world_size());
    float last = 3;
    reducer.add("last", as_buffer(last));
    reducer.finish();
    EXPECT_EQ(last, 3 * group.world_size());
  });
}

// `add` does not wait for other ranks: rank 0 fills a pack and then signals rank 1 to fill the same pack.
TEST_P(GradientsTest, AddDoesNotWaitForOtherRanks) {
  in_group([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    GradientReducer reducer(group, {.pack_bytes = 100});
    std::vector<float> gradient(100, 1);
    int word = group.rank();
    if (group.rank() == 1) group.recv(as_buffer(word), 0);
    const ReducedGradient reduced = reducer.add("w", gradient);
    if (group.rank() == 0) {
      EXPECT_FALSE(reduced.is_completed());
      group.send(as_buffer(word), 1);
    }
    reduced.wait();
    EXPECT_EQ(gradient, std::vector<float>(100, static_cast<float>(group.world_size())));
  });
}

// Ranks may add dtypes in different orders.
TEST_P(GradientsTest, IncompletePacksAreSentInTheOrderOfDtypes) {
  in_group([](ProcessGroup& group) {
    GradientReducer reducer(group);
    std::vector<float> floats(5, 1);
    std::vector<int64_t> integers(7, group.rank());
    if (group.rank() % 2 == 0) reducer.add("f", floats);
    reducer.add("i", integers);
    if (group.rank() % 2 == 1) reducer.add("f", floats);
    reducer.finish();
    const int64_t world = group.world_size();
    EXPECT_EQ(floats, std::vector<float>(5, static_cast<float>(world)));
    EXPECT_EQ(integers, std::vector<int64_t>(7, world * (world - 1) / 2));
  });
}

TEST_P(GradientsTest, APackIsSentWhenItHoldsMoreThan10MiB) {
  in_group([](ProcessGroup& group) {
    GradientReducer reducer(group);
    std::vector<uint8_t> most(10 * 1024 * 1024, 1);
    uint8_t more = 1;
    const ReducedGradient first = reducer.add("most", most);
    EXPECT_EQ(failure_of([&first] { first.wait(); }), Status::kInvalid) << "it was sent";
    reducer.add("more", as_buffer(more)).wait();
    first.wait();
    EXPECT_EQ(most.back(), group.world_size());
  });
}

// In the original this wait never ended.
TEST_P(GradientsTest, WaitingForAnUnsentPackIsRefused) {
  in_group([](ProcessGroup& group) {
    GradientReducer reducer(group);
    int gradient = 1;
    const ReducedGradient reduced = reducer.add("w", as_buffer(gradient));
    std::string text;
    EXPECT_EQ(failure_of([&] { reduced.wait(); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("'w' is in a pack that is not full; call flush"), std::string::npos) << text;
    reducer.flush();
    reduced.wait();
    EXPECT_EQ(gradient, group.world_size());
  });
}

TEST_P(GradientsTest, AParameterIsAddedOncePerRound) {
  in_group([](ProcessGroup& group) {
    GradientReducer reducer(group);
    int gradient = 1;
    reducer.add("w", as_buffer(gradient));
    std::string text;
    EXPECT_EQ(failure_of([&] { reducer.add("w", as_buffer(gradient)); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("'w' was added twice"), std::string::npos) << text;
    EXPECT_EQ(failure_of([&] { reducer.add("v", Buffer(nullptr, 1, DType::kF32)); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("'v' has no memory"), std::string::npos) << text;
    reducer.finish();
    reducer.add("w", as_buffer(gradient));
    reducer.finish();
    EXPECT_EQ(gradient, group.world_size() * group.world_size());
  });
}

TEST_P(GradientsTest, EachGradientReturnsToItsDevice) {
  in_group([](ProcessGroup& group) {
    OtherMemory other;
    GradientReducer reducer(group, {.memory = other.packs_on_host()});
    std::vector<float> a(3, 1);
    std::vector<float> b(4, 2);
    std::vector<float> c(5, 3);
    reducer.add("a", Buffer(a.data(), a.size(), DType::kF32, Device::cuda(1)));
    reducer.add("b", b);
    const ReducedGradient last = reducer.add("c", Buffer(c.data(), c.size(), DType::kF32, Device::cuda(0)));
    reducer.finish();
    EXPECT_EQ(last.buffer().device(), Device::cuda(0));
    const auto world = static_cast<float>(group.world_size());
    EXPECT_EQ(a, std::vector<float>(3, world));
    EXPECT_EQ(b, std::vector<float>(4, 2 * world));
    EXPECT_EQ(c, std::vector<float>(5, 3 * world));
    EXPECT_EQ(other.copies(), (std::vector<std::string>{"cuda:1 to host memory", "cuda:0 to host memory",
                                                        "host memory to cuda:1", "host memory to cuda:0"}));
  });
}

TEST_P(GradientsTest, OverAnotherBackendThanTheGroup) {
  in_group([](ProcessGroup& group) {
    for (const std::string& backend : built_backends()) {
      GradientReducer reducer(group, {.backend = backend});
      int gradient = 1;
      reducer.add("w", as_buffer(gradient));
      reducer.finish();
      EXPECT_EQ(gradient, group.world_size());
    }
    std::string text;
    EXPECT_EQ(failure_of([&] { GradientReducer reducer(group, {.backend = "no_such"}); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("no_such"), std::string::npos) << text;
  });
}

TEST_P(GradientsTest, DestructionCancelsPendingPacks) {
  in_group([](ProcessGroup& group) {
    int gradient = 1;
    std::optional<ReducedGradient> reduced;
    {
      GradientReducer reducer(group);
      reduced.emplace(reducer.add("w", as_buffer(gradient)));
    }
    EXPECT_EQ(failure_of([&] { reduced->wait(); }), Status::kCancelled);
    EXPECT_EQ(gradient, 1);
  });
}

TEST_P(GradientsTest, ListsAreBroadcastFromTheFirstRank) {
  in_group([](ProcessGroup& group) {
    std::vector<float> weights(5, static_cast<float>(group.rank() + 1));
    int64_t step = group.rank() + 7;
    bcast_list(std::vector<Buffer>{weights, as_buffer(step)}, group);
    EXPECT_EQ(weights, std::vector<float>(5, 1));
    EXPECT_EQ(step, 7);
  });
}

class DifferenceTest : public BackendTest {
 protected:
  // Expects the same error, which names `named_rank`, on every rank.
  std::string sentence(const std::function<void(GradientReducer&, int rank)>& round, int named_rank) const {
    std::mutex mutex;
    std::vector<std::string> texts;
    in_group([&](ProcessGroup& group) {
      GradientReducer reducer(group, {.pack_bytes = 100});
      try {
        round(reducer, group.rank());
        reducer.finish();
        ADD_FAILURE() << "rank " << group.rank() << " got no error";
      } catch (const Error& e) {
        EXPECT_EQ(e.status(), Status::kInvalid) << e.what();
        EXPECT_EQ(e.peer_rank(), named_rank) << e.what();
        const std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
      }
      int value = 0;
      EXPECT_EQ(failure_of([&] { reducer.add("later", as_buffer(value)); }), Status::kInvalid);
      int sum = 1;
      group.all_reduce(as_buffer(sum));  // the group remains usable
      EXPECT_EQ(sum, group.world_size());
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts.front());
    return texts.empty() ? "" : texts.front();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, DifferenceTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(2, 3, 4)),
                         backend_test_name);

TEST_P(DifferenceTest, AnotherOrderIsNamed) {
  std::vector<std::vector<float>> gradients(4 * 3, std::vector<float>(4, 1));
  const std::string text = sentence(
      [&gradients](GradientReducer& reducer, int rank) {
        const auto mine = static_cast<size_t>(3 * rank);
        reducer.add("first", gradients[mine]);
        reducer.add(rank == 1 ? "bias" : "weight", gradients[mine + 1]);
        reducer.add(rank == 1 ? "weight" : "bias", gradients[mine + 2]);
      },
      1);
  EXPECT_EQ(text.find("rank 1 has 'bias' (f32 x 4) as gradient 1 of its round, where rank 0 has 'weight' (f32 x 4);"),
            0U)
      << text;
  for (const auto& gradient : gradients) EXPECT_EQ(gradient, std::vector<float>(4, 1)) << "was reduced all the same";
}

TEST_P(DifferenceTest, AGradientThatOneRankLacksIsNamed) {
  std::vector<double> gradients(8, 1);
  const std::string text = sentence(
      [&gradients](GradientReducer& reducer, int rank) {
        const auto mine = static_cast<size_t>(2 * rank);
        reducer.add("weight", as_buffer(gradients[mine]));
        if (rank != 0) reducer.add("bias", as_buffer(gradients[mine + 1]));
      },
      world_size() == 2 ? 1 : 0);
  const std::string expected =
      world_size() == 2 ? "rank 1 has 'bias' (f64 x 1) as gradient 1 of its round, where rank 0 has the end;"
                        : "rank 0 has the end as gradient 1 of its round, where rank 1 has 'bias' (f64 x 1);";
  EXPECT_EQ(text.find(expected), 0U) << text;
}

// The packs differ in size, so that one rank sends while another still collects.
TEST_P(DifferenceTest, AnotherSizeInALaterPackIsNamed) {
  std::vector<std::vector<float>> gradients(4, std::vector<float>(60, 1));
  const std::string text = sentence(
      [&gradients](GradientReducer& reducer, int rank) {
        Buffer whole = gradients[static_cast<size_t>(rank)];
        reducer.add("large", detail::part_of(whole, 0, 30));
        reducer.add("small", detail::part_of(whole, 30, rank == 1 ? 60 : 50));
        reducer.add("rest", detail::part_of(whole, 50, 50));
      },
      1);
  EXPECT_EQ(text.find("rank 1 has 'small' (f32 x 30) as gradient 1 of its round, where rank 0 has 'small' (f32 x 20)"),
            0U)
      << text;
}

TEST_P(DifferenceTest, OptionsAndListsAreCompared) {
  in_group([](ProcessGroup& group) {
    const ReduceMethod method = group.rank() == 1 ? ReduceMethod::kMean : ReduceMethod::kSum;
    std::string text;
    EXPECT_EQ(failure_of([&] { GradientReducer reducer(group, {.method = method}); }, &text), Status::kInvalid);
    EXPECT_EQ(text.find("rank 1 has mean as option 0 of its gradient reducer, where rank 0 has sum;"), 0U) << text;
    std::vector<float> values(group.rank() == 1 ? 4 : 3);
    EXPECT_EQ(failure_of([&] { bcast_list(std::vector<Buffer>{values}, group); }, &text), Status::kInvalid);
    EXPECT_EQ(text.find("rank 1 has f32 x 4 as buffer 0 of its list, where rank 0 has f32 x 3;"), 0U) << text;
  });
}

// A failure of one rank within a pack ends all ranks before their deadline.
TEST_P(DifferenceTest, ACopyThatFailsOnOneRankEndsAll) {
  in_group([](ProcessGroup& group) {
    ReducerOptions options;
    if (group.rank() == 1) {
      options.memory.copy = [](const ConstBuffer&, const Buffer&) { throw std::runtime_error("the device is gone"); };
    } else {
      options.memory = OtherMemory::plain();
    }
    GradientReducer reducer(group, options);
    int gradient = 1;
    reducer.add("w", Buffer(&gradient, 1, DType::kI32, Device::cuda(0)));
    std::string text;
    const Status status = failure_of([&] { reducer.finish(); }, &text);
    if (group.rank() == 1) {
      EXPECT_EQ(status, Status::kInternal);
      EXPECT_EQ(text, "the device is gone");
    } else {
      EXPECT_NE(status, Status::kTimeout) << text;
    }
    EXPECT_EQ(failure_of([&] { reducer.flush(); }), status);
  });
}

TEST_P(DifferenceTest, AMissingRankIsNamedAtTheDeadline) {
  if (world_size() != 3) return;  // it waits for the deadline
  in_group([](ProcessGroup& group) {
    GradientReducer reducer(group, {.timeout = std::chrono::seconds(5)});  // also of the start
    int gradient = 1;
    reducer.add("w", as_buffer(gradient));
    if (group.rank() != 1) {
      std::string text;
      EXPECT_EQ(failure_of([&] { reducer.finish(); }, &text), Status::kTimeout) << text;
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    }
    group.barrier();
  });
}

TEST(GroupOfSomeTest, NonMembersCannotCreateAReducer) {
  in_group("inproc", 3, [](ProcessGroup& group) {
    ProcessGroup pair = group.new_group({2, 0});
    if (group.rank() == 1) {
      std::string text;
      EXPECT_EQ(failure_of([&] { GradientReducer reducer(pair); }, &text), Status::kInvalid);
      EXPECT_NE(text.find("not a member"), std::string::npos) << text;
      return;
    }
    int from = group.rank();
    bcast_list(std::vector<Buffer>{as_buffer(from)}, pair);
    EXPECT_EQ(from, 2);  // the first rank of the list is the root
    GradientReducer reducer(pair);
    int gradient = 1;
    reducer.add("w", as_buffer(gradient));
    reducer.finish();
    EXPECT_EQ(gradient, 2);
  });
}

}  // namespace
}  // namespace backplane::test
