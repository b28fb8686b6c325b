// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic that plugins are offered (abi/ext/reduce.h), as a plugin calls it.
#include "plugin/host.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "backplane/abi/ext/reduce.h"
#include "backplane/abi/types.h"

namespace backplane::core {
namespace {

class HostReduce : public testing::Test {
 protected:
  const Host host_{"test"};
  const bp_reduce_api* api_ =
      static_cast<const bp_reduce_api*>(host_.table()->extension(host_.table()->ctx, BP_EXT_REDUCE));
};

TEST_F(HostReduce, CombinesDividesAndMultiplies) {
  ASSERT_TRUE(api_ != nullptr && BP_HAS(api_, multiply));
  const std::vector<int32_t> left = {1, -7, 30};
  const std::vector<int32_t> right = {2, 0, 5};
  std::vector<int32_t> out(3);
  EXPECT_EQ(api_->combine(BP_I32, BP_AVG, out.data(), left.data(), right.data(), 3), BP_OK);
  EXPECT_EQ(out, (std::vector<int32_t>{3, -7, 35}));
  EXPECT_EQ(api_->divide(BP_I32, out.data(), 2, 3), BP_OK);
  EXPECT_EQ(out, (std::vector<int32_t>{1, -3, 17}));
  const int32_t factor = -3;
  EXPECT_EQ(api_->multiply(BP_I32, out.data(), left.data(), &factor, 3), BP_OK);
  EXPECT_EQ(out, (std::vector<int32_t>{-3, 21, -90}));
}

TEST_F(HostReduce, ReducesAllAtOnce) {
  ASSERT_TRUE(api_ != nullptr && BP_HAS(api_, reduce));
  std::vector<int32_t> data[] = {{1, -7, 30}, {2, 0, 5}, {4, 1, 0}};
  const int32_t factor = 10;
  const void* const inputs[] = {data[0].data(), data[1].data(), data[2].data()};
  const void* const scalars[] = {nullptr, &factor, nullptr};
  std::vector<int32_t> out(3);
  EXPECT_EQ(api_->reduce(BP_I32, BP_AVG, out.data(), inputs, nullptr, 3, 3, 3), BP_OK);
  EXPECT_EQ(out, (std::vector<int32_t>{2, -2, 11}));
  EXPECT_EQ(api_->reduce(BP_I32, BP_PREMUL_SUM, data[2].data(), inputs, scalars, 3, 0, 3), BP_OK);
  EXPECT_EQ(data[2], (std::vector<int32_t>{25, -6, 80}));
}

TEST_F(HostReduce, RefusesInvalidCombinations) {
  uint8_t data[16] = {};
  const uint8_t factor[16] = {};
  EXPECT_EQ(api_->combine(BP_F32, BP_BXOR, data, data, data, 1), BP_INVALID);
  EXPECT_EQ(api_->divide(BP_BOOL, data, 2, 1), BP_INVALID);
  EXPECT_EQ(api_->divide(BP_F32, data, 0, 1), BP_INVALID);
  EXPECT_EQ(api_->divide(BP_DTYPE_COUNT, data, 2, 1), BP_INVALID);
  EXPECT_EQ(api_->multiply(BP_DTYPE_COUNT, data, data, factor, 1), BP_INVALID);
  const void* const inputs[] = {data};
  EXPECT_EQ(api_->reduce(BP_F32, BP_BXOR, data, inputs, nullptr, 1, 1, 1), BP_INVALID);
  EXPECT_EQ(api_->reduce(BP_F32, BP_SUM, data, inputs, nullptr, 0, 1, 1), BP_INVALID);
  EXPECT_EQ(api_->reduce(BP_F32, BP_AVG, data, inputs, nullptr, 1, 0, 1), BP_INVALID);
}

}  // namespace
}  // namespace backplane::core
