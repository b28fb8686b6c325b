// SPDX-License-Identifier: Apache-2.0
#include "backplane/compat/megengine.hpp"

#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "group/other_memory.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

TEST(OffsetsTest, EachShapeBeginsAtTheEndOfThePreviousOne) {
  EXPECT_EQ(compat::get_offsets(std::vector<compat::Shape>{{1}, {3, 3}}), (compat::Offsets{0, 1, 1, 10}));
  EXPECT_EQ(compat::get_offsets({}), compat::Offsets());
}

TEST(OffsetsTest, AScalarIsOneElementAndAnEmptyTensorNone) {
  EXPECT_EQ(compat::get_offsets(std::vector<compat::Shape>{{}, {2, 0, 5}, {}, {4}}),
            (compat::Offsets{0, 1, 1, 1, 1, 2, 2, 6}));
}

TEST(OffsetsTest, ImpossibleShapesAreRefused) {
  std::string text;
  EXPECT_EQ(failure_of([] { compat::count_of({3, -1}); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "a shape has the negative extent -1");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(failure_of([] { compat::count_of({kMost, 3}); }, &text), Status::kInvalid);
  EXPECT_EQ(text, "a shape has more elements than 64 bits can count");
  EXPECT_EQ(compat::count_of({kMost, 0}), 0U);
}

TEST(PackTest, ConcatAndSplitAreInverse) {
  const std::vector<int> one_element = {7};
  std::vector<int> nine(9);
  std::iota(nine.begin(), nine.end(), 1);
  const compat::Offsets offsets = {0, 1, 1, 10};
  std::vector<int> pack(10);
  compat::pack_concat(std::vector<ConstBuffer>{one_element, nine}, offsets, pack);
  EXPECT_EQ(pack, (std::vector<int>{7, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  std::vector<int> first(1);
  std::vector<int> second(9);
  compat::pack_split(pack, offsets, std::vector<Buffer>{first, second});
  EXPECT_EQ(first, one_element);
  EXPECT_EQ(second, nine);
}

TEST(PackTest, SplitWithoutACopyViewsThePack) {
  std::vector<double> pack = {1, 2, 3};
  const std::vector<Buffer> parts = compat::pack_split(pack, compat::Offsets{0, 1, 1, 1, 1, 3});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].data(), pack.data());
  EXPECT_EQ(parts[1].count(), 0U);
  EXPECT_EQ(parts[2].data(), pack.data() + 1);
  EXPECT_EQ(parts[2].count(), 2U);
  EXPECT_EQ(parts[2].dtype(), DType::kF64);
}

TEST(PackTest, MismatchedSizesAreRefused) {
  std::vector<int> pack(4);
  std::vector<int> two(2);
  std::vector<float> floats(2);
  const auto concat = [&pack](const std::vector<ConstBuffer>& inputs, const compat::Offsets& offsets) {
    std::string text;
    EXPECT_EQ(failure_of([&] { compat::pack_concat(inputs, offsets, pack); }, &text), Status::kInvalid);
    return text;
  };
  EXPECT_NE(concat({two}, {0, 2, 2, 4}).find("two offsets for each"), std::string::npos);
  EXPECT_NE(concat({two}, {3, 5}).find("lies outside"), std::string::npos);
  EXPECT_NE(concat({two}, {2, 0}).find("lies outside"), std::string::npos);
  EXPECT_NE(concat({two}, {0, 3}).find("has 2 elements, its offsets 3"), std::string::npos);
  EXPECT_NE(concat({floats}, {0, 2}).find("of i32 is of f32"), std::string::npos);
}

TEST(PackTest, BytesAreCopiedBetweenDevicesByTheGivenFunction) {
  std::vector<int> far = {1, 2};
  const Buffer on_device(far.data(), far.size(), DType::kI32, Device::cuda(1));
  std::vector<int> pack(2);
  std::string text;
  EXPECT_EQ(failure_of(
                [&] {
                  compat::pack_concat(std::vector<ConstBuffer>{on_device}, compat::Offsets{0, 2}, pack);
                },
                &text),
            Status::kUnsupported);
  EXPECT_NE(text.find("from cuda:1 to host memory"), std::string::npos) << text;
  OtherMemory other;
  compat::pack_concat(std::vector<ConstBuffer>{on_device}, compat::Offsets{0, 2}, pack, other.packs_on_host());
  EXPECT_EQ(pack, far);
  EXPECT_EQ(other.copies(), (std::vector<std::string>{"cuda:1 to host memory"}));
}

TEST(ReduceMethodTest, IsCaseInsensitiveAndRefusesOtherWords) {
  EXPECT_EQ(compat::reduce_method("sum"), ReduceMethod::kSum);
  EXPECT_EQ(compat::reduce_method("MEAN"), ReduceMethod::kMean);
  std::string text;
  EXPECT_EQ(failure_of([] { compat::reduce_method("max"); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("sum or mean, not 'max'"), std::string::npos) << text;
}

using PackReduceTest = BackendTest;
INSTANTIATE_TEST_SUITE_P(Backends, PackReduceTest,
                         testing::Combine(testing::ValuesIn(built_backends()), testing::Values(1, 2, 3, 4)),
                         backend_test_name);

TEST_P(PackReduceTest, SumAndMeanOfAList) {
  in_group([](ProcessGroup& group) {
    const int world = group.world_size();
    for (const ReduceMethod method : {ReduceMethod::kSum, ReduceMethod::kMean}) {
      float scalar = static_cast<float>(group.rank());
      std::vector<float> matrix(6, 2);
      std::vector<float> none;
      compat::pack_allreduce_split(std::vector<Buffer>{as_buffer(scalar), matrix, none},
                                   std::vector<compat::Shape>{{}, {2, 3}, {0}}, group, method);
      const float divisor = method == ReduceMethod::kMean ? static_cast<float>(world) : 1;
      EXPECT_FLOAT_EQ(scalar, static_cast<float>(world * (world - 1)) / 2 / divisor);
      for (const float value : matrix) EXPECT_FLOAT_EQ(value, static_cast<float>(2 * world) / divisor);
    }
  });
}

// The backend accesses this memory directly, without staging (see the zero-copy tests of shm).
TEST_P(PackReduceTest, PacksAreAllocatedByTheGroup) {
  in_group([this](ProcessGroup& group) {
    detail::PackReducer packer{PackMemory{}};
    for (const size_t count : {10, 20'000, 500}) {
      std::vector<int> some(count, 1);
      std::vector<int> more(2 * count, 2);
      packer.reduce(group, std::vector<Buffer>{some, more}, compat::Offsets{0, count, count, 3 * count},
                    ReduceMethod::kSum);
      EXPECT_EQ(packer.native(), backend() == "shm" && group.world_size() > 1);
      EXPECT_EQ(some, std::vector<int>(count, group.world_size()));
      EXPECT_EQ(more, std::vector<int>(2 * count, 2 * group.world_size()));
    }
  });
}

TEST_P(PackReduceTest, MeanOfIntegersRoundsTowardZero) {
  in_group([](ProcessGroup& group) {
    std::vector<int> values = {group.rank() == 0 ? -1 : 0, 3};
    compat::pack_allreduce_split(std::vector<Buffer>{values}, std::vector<compat::Shape>{{2}}, group,
                                 ReduceMethod::kMean);
    EXPECT_EQ(values[0], group.world_size() == 1 ? -1 : 0);
    EXPECT_EQ(values[1], 3);
  });
}

TEST_P(PackReduceTest, MismatchedShapesChangeNothing) {
  in_group([](ProcessGroup& group) {
    std::vector<int> values(4, 1);
    std::string text;
    const auto reduce = [&] {
      compat::pack_allreduce_split(std::vector<Buffer>{values}, std::vector<compat::Shape>{{5}}, group,
                                   ReduceMethod::kSum);
    };
    EXPECT_EQ(failure_of(reduce, &text), Status::kInvalid);
    EXPECT_NE(text.find("has 4 elements, its offsets 5"), std::string::npos) << text;
    EXPECT_EQ(values, std::vector<int>(4, 1));
  });
}

}  // namespace
}  // namespace backplane::test
