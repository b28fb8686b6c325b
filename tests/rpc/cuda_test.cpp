// SPDX-License-Identifier: Apache-2.0
//
// The plugin tensorpipe's CUDA devices and copying threads without TensorPipe, which ThreadSanitizer cannot check.
#include "device.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "backplane/base/executor.hpp"
#include "backplane/sdk/failure.hpp"
#include "cuda_double.hpp"
#include "support/eventually.hpp"
#include "support/failures.hpp"

namespace backplane::tensorpipe {
namespace {

using Bytes = std::vector<uint8_t>;

const std::atomic<bool> kRunning = false;
const std::atomic<bool> kStopped = true;

TEST(CudaTest, CopiesOnTwoThreads) {
  CudaDevices devices;
  base::Executor in(1);
  base::Executor out(1);
  std::vector<Bytes> back(50);
  for (size_t i = 0; i < back.size(); ++i) {
    in.add([&devices, &out, &back, i] {
      const Bytes bytes(1000 * i + 1, static_cast<uint8_t>(i));
      const auto device = devices.get(static_cast<int>(i % 2));
      std::shared_ptr<void> memory = device->allocate(bytes.size());
      device->copy_from_host(memory.get(), bytes.data(), bytes.size(), kRunning);
      out.add([&devices, &back, i, memory, size = bytes.size()] {
        back[i].resize(size);
        devices.get(static_cast<int>(i % 2))->copy_to_host(back[i].data(), memory.get(), size, kRunning);
      });
    });
  }
  std::promise<void> done;
  in.add([&out, &done] { out.add([&done] { done.set_value(); }); });
  ASSERT_TRUE(test::in_time(done.get_future())) << "the tasks did not run";
  for (size_t i = 0; i < back.size(); ++i) EXPECT_TRUE(back[i] == Bytes(1000 * i + 1, static_cast<uint8_t>(i))) << i;
  in.stop();
  out.stop();
  EXPECT_EQ(cuda_double_blocks(0) + cuda_double_blocks(1), 0U);
  EXPECT_EQ(cuda_double_contexts(0), 1);
}

TEST(CudaTest, MemoryOutlivesItsDevices) {
  std::shared_ptr<void> memory;
  {
    CudaDevices devices;
    memory = devices.get(1)->allocate(10);
  }
  EXPECT_EQ(cuda_double_contexts(1), 1);
  std::thread([&memory] { memory.reset(); }).join();
  EXPECT_EQ(cuda_double_blocks(1), 0U);
  EXPECT_EQ(cuda_double_contexts(1), 0);
  EXPECT_EQ(cuda_double_violations(), 0);
}

TEST(CudaTest, CopiesNothingAfterTheEnd) {
  CudaDevices devices;
  const auto device = devices.get(0);
  const auto memory = device->allocate(10);
  Bytes bytes(10);
  std::string text;
  const auto to_host = [&] { device->copy_to_host(bytes.data(), memory.get(), 10, kStopped); };
  EXPECT_EQ(test::status_of<sdk::Failure>(to_host, &text), BP_CANCELLED);
  EXPECT_EQ(text, "this worker has left");
  const auto from_host = [&] { device->copy_from_host(memory.get(), bytes.data(), 10, kStopped); };
  EXPECT_EQ(test::status_of<sdk::Failure>(from_host, &text), BP_CANCELLED);
  EXPECT_EQ(text, "this worker has left");
}

TEST(CudaTest, RejectsUnknownDevices) {
  CudaDevices devices;
  EXPECT_EQ(count_cuda_devices(), 2);
  std::string text;
  EXPECT_EQ(test::status_of<sdk::Failure>([&devices] { devices.get(2); }, &text), BP_INVALID);
  EXPECT_EQ(text, "there is no CUDA device 2 here");
}

}  // namespace
}  // namespace backplane::tensorpipe
