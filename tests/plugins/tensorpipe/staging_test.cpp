// SPDX-License-Identifier: Apache-2.0
//
// Messages with device buffers between agents without the core, over a fake CUDA driver.
#include "plugins/tensorpipe/support.hpp"
#include "rpc/devices.hpp"

namespace backplane::test {
namespace {

using Array = rpc::DeviceArray<uint8_t>;

const core::KeyValues kMapped = {{"device_maps", "test:0=1"}};  // all workers are called test

Array array_of(uint64_t bytes) { return on_device(std::vector<uint8_t>(bytes, 7), 0); }
bp_buffer buffer_of(const Array& array) { return {array.data(), array.size(), BP_CUDA, 0}; }

class TensorPipeStagingTest : public testing::Test {
 protected:
  void SetUp() override {
    const OnDevice first(0);  // the program holds the contexts
    express_position_ = cuda_double_contexts(0) + cuda_double_contexts(1);
  }
  void TearDown() override {
    cuda_double_fail("", 0, 0, 0);
    EXPECT_EQ(cuda_double_blocks(0) + cuda_double_blocks(1), 0U);
    EXPECT_EQ(cuda_double_contexts(0) + cuda_double_contexts(1), express_position_);
    EXPECT_EQ(cuda_double_violations(), 0);
  }

 private:
  int express_position_ = 0;
};

TEST_F(TensorPipeStagingTest, KeepsTheOrderOfMessages) {
  constexpr uint64_t kExpress = 1000;
  const Array large = array_of(3 << 20);
  const Array small = array_of(10);
  TestAgents sides(agent(), kMapped);
  for (int i = 0; i < 5; ++i) {
    sides.zero->send(1, 1, buffer_of(large));
    sides.zero->send(1, 2, 20000);
    sides.zero->send(1, 3, buffer_of(small));
    sides.zero->send(1, 4, 4 << 20);
    sides.zero->send(1, 5, kExpress);
    sides.zero->send(1, 0, 0);  // a goodbye
  }
  EXPECT_TRUE(sides.one->has_received(30));
  std::vector<uint64_t> sizes;
  for (int i = 0; i < 5; ++i) sizes.insert(sizes.end(), {3 << 20, 20000, 10, 4 << 20, 0});
  std::vector<uint64_t> along_the_pipe;
  int goodbyes = 0;
  int express = 0;  // may overtake, but goodbyes do not overtake it
  for (const uint64_t size : sides.one->received_sizes()) {
    if (size == kExpress) {
      ++express;
    } else {
      along_the_pipe.push_back(size);
    }
    if (size == 0) {
      EXPECT_GE(express, ++goodbyes);
    }
  }
  EXPECT_EQ(along_the_pipe, sizes);
  EXPECT_TRUE(sides.zero->holds_messages(0));
}

TEST_F(TensorPipeStagingTest, DoesNotBlockOtherWorkers) {
  const Array array = array_of(1000);
  const auto store = core::make_inproc_store();
  std::array<std::unique_ptr<TestAgent>, 3> sides;
  std::vector<std::thread> starting;
  for (int32_t rank = 0; rank < 3; ++rank) {
    starting.emplace_back([&sides, &store, rank] {
      sides[static_cast<size_t>(rank)] = std::make_unique<TestAgent>(agent(), store, RankInWorld(rank, 3), kMapped);
    });
  }
  for (std::thread& each : starting) each.join();
  cuda_double_hold(1);
  sides[0]->send(1, 1, buffer_of(array));
  EXPECT_EQ(cuda_double_holds_one(), 1);
  sides[0]->send(1, 2, 5);
  sides[0]->send(2, 3, 7);
  sides[1]->send(0, 4, 8);
  EXPECT_TRUE(sides[2]->has_received(1));
  EXPECT_TRUE(sides[0]->has_received(1));
  EXPECT_EQ(sides[1]->received_sizes(), std::vector<uint64_t>());
  cuda_double_hold(0);
  EXPECT_TRUE(sides[1]->has_received(2));
}

TEST_F(TensorPipeStagingTest, AbortReleasesCopiesInProgress) {
  const Array array = array_of(1000);
  TestAgents sides(agent(), kMapped);
  cuda_double_hold(1);
  for (uint64_t id = 1; id <= 10; ++id) ASSERT_EQ(sides.zero->send(1, id, buffer_of(array)), BP_OK);
  EXPECT_EQ(cuda_double_holds_one(), 1);
  std::thread aborting([&sides] { sides.zero->abort(); });
  cuda_double_hold(0);
  aborting.join();
  EXPECT_TRUE(sides.zero->holds_messages(0));
}

TEST_F(TensorPipeStagingTest, OutOfMemoryDeliversWithoutBuffers) {
  const Array array = array_of(1000);
  TestAgents sides(agent(), kMapped);
  cuda_double_fail("cuMemAlloc_v2", 1, 2, 0);
  ASSERT_EQ(sides.zero->send(1, 1, buffer_of(array)), BP_OK);
  EXPECT_EQ(
      sides.one->refusal(),
      "CUDA device 1 has no memory for a buffer of 1000 bytes: CUDA_ERROR_OUT_OF_MEMORY; free some there, or send "
      "less at a time");
  EXPECT_EQ(sides.one->losses_of(0), 0U);
  cuda_double_fail("", 0, 0, 0);
  ASSERT_EQ(sides.zero->send(1, 3, buffer_of(array)), BP_OK);
  EXPECT_TRUE(sides.one->has_received(1));
}

}  // namespace
}  // namespace backplane::test
