// SPDX-License-Identifier: Apache-2.0
//
// How groups of nccl start: what is missing, which device, who chooses it.
#include <optional>

#include "support.hpp"

namespace backplane::test {
namespace {

TEST(Nccl, SaysWhichLibraryOrFunctionIsMissing) {
  const std::string none = refusal("nccl?library=/nowhere/libnccl.so.2", Status::kUnsupported);
  EXPECT_TRUE(contains(none, "NCCL cannot be loaded") && contains(none, "/nowhere/libnccl.so.2")) << none;
  const std::string other = refusal("nccl?library=libm.so.6", Status::kUnsupported);
  EXPECT_TRUE(contains(other, "libm.so.6 has no function ncclGetVersion")) << other;
}

TEST(Nccl, SaysThatDriverOrDeviceIsMissing) {
  {
    const ScopedVariable no_driver("BACKPLANE_DOUBLE_DRIVER", "0");
    const std::string text = refusal(nccl(), Status::kUnsupported);
    EXPECT_TRUE(contains(text, "no CUDA driver")) << text;
  }
  {
    const ScopedVariable old_driver("BACKPLANE_DOUBLE_DRIVER", "11040");
    const std::string text = refusal(nccl(), Status::kUnsupported);
    EXPECT_TRUE(contains(text, "driver for CUDA 11.4")) << text;
  }
  const ScopedVariable no_device("BACKPLANE_DOUBLE_DEVICES", "0");
  const std::string text = refusal(nccl(), Status::kUnsupported);
  EXPECT_TRUE(contains(text, "no CUDA device")) << text;
}

// Until 2.23 it launches on the caller's thread, where an abort would have to wait for room in a stream.
TEST(Nccl, RefusesOlderLibraries) {
  std::string other_name = kDouble;  // what has been opened stays open
  other_name.insert(other_name.rfind('/'), "/.");
  const ScopedVariable old("BACKPLANE_DOUBLE_VERSION", "22203");
  const std::string text = refusal("nccl?library=" + other_name, Status::kUnsupported);
  EXPECT_TRUE(contains(text, "is NCCL 2.22.3; NCCL 2.23 or newer is needed")) << text;
}

TEST(Nccl, NeverGuessesTheDevice) {
  EXPECT_TRUE(contains(refusal(nccl(), Status::kInvalid, -1), "no device was named for rank 0"));
  EXPECT_TRUE(contains(refusal(nccl(), Status::kInvalid, 8), "there is no device 8; there are 8"));
  EXPECT_TRUE(contains(refusal(nccl("device=first"), Status::kInvalid), "option device is a number"));
  const ProcessGroup group =
      ProcessGroup::create(group_options(nccl("device=7"), Store::inproc(), 0, 1));  // the option is a name, too
  EXPECT_EQ(group.backend(Device::cuda(7)), "nccl");
}

// NCCL is still connecting when the time for that is over.
TEST(Nccl, KeepsTheDeadlineOfItsStart) {
  const ScopedVariable never("BACKPLANE_DOUBLE_CONNECTS", "0");
  GroupOptions options = on_device(nccl(), Store::inproc(), 0, 1, 0);
  options.timeout = std::chrono::seconds(3);
  std::string text;
  EXPECT_EQ(failure_of([&] { ProcessGroup::create(options); }, &text), Status::kTimeout);
  EXPECT_TRUE(contains(text, "NCCL did not connect them in the time allowed")) << text;
}

TEST(Nccl, DoesWithoutFunctionsOfNewerLibraries) {
  on_devices(
      2,
      [](ProcessGroup& group, Device device) {
        Memory<float> sum = filled<float>(group, device, 10, 1);
        group.all_reduce(span(sum, device));
        EXPECT_TRUE(all_are(sum, 2.0F));
        Memory<float> blocks = filled<float>(group, device, 2, static_cast<float>(group.rank()));
        group.all_to_all(span(blocks, device), span(blocks, device));
        EXPECT_TRUE(blocks[0] == 0 && blocks[1] == 1);
      },
      "nccl?library=" BACKPLANE_NCCL_DOUBLE_OLD);
}

TEST(Nccl, ReducesF8WhereDevicesCan) {
  const auto status = [] {
    std::optional<Status> found;  // none: it worked
    on_devices(1, [&found](ProcessGroup& group, Device device) {
      Memory<uint8_t> memory = filled<uint8_t>(group, device, 4, 0);
      try {
        group.all_reduce(Buffer(memory.data(), 4, DType::kF8E4M3, device));
      } catch (const Error& e) {
        found = e.status();
      }
    });
    return found;
  };
  EXPECT_EQ(status(), std::nullopt);
  const ScopedVariable old("BACKPLANE_DOUBLE_CC", "80");
  EXPECT_EQ(status(), Status::kUnsupported);
}

TEST(Nccl, IsWhatAutoTakesForDevices) {
  const ScopedVariable library("BACKPLANE_NCCL_LIBRARY", kDouble);
  on_devices(
      2,
      [](ProcessGroup& group, Device device) {
        EXPECT_EQ(group.backend(device), "nccl");
        EXPECT_NE(group.backend(), "nccl");
        std::vector<int> host = {1};
        Memory<int32_t> memory = filled<int32_t>(group, device, 1, 1);
        group.all_reduce(host);
        group.all_reduce(span(memory, device));
        EXPECT_EQ(host[0] + memory[0], 4);
      },
      "auto");
  // One rank alone has it, too; none without a driver, and the host is served all the same.
  const ProcessGroup alone = ProcessGroup::create(on_device("auto", Store::inproc(), 0, 1, 3));
  EXPECT_EQ(alone.backend(), "self");
  EXPECT_EQ(alone.backend(Device::cuda(3)), "nccl");
  const ScopedVariable no_driver("BACKPLANE_DOUBLE_DRIVER", "0");
  const ProcessGroup without = ProcessGroup::create(on_device("auto", Store::inproc(), 0, 1, 3));
  EXPECT_EQ(without.backend(Device::cuda(3)), "self");
}

// NCCL serves them all the same.
TEST(Nccl, SaysWhichDevicesDoNotReachEachOther) {
  const ScopedVariable library("BACKPLANE_NCCL_LIBRARY", kDouble);
  const ScopedVariable devices("BACKPLANE_DOUBLE_DEVICES", "4");
  const auto chosen = [] {
    LogLines lines;
    on_devices(
        2, [](ProcessGroup& group, Device device) { EXPECT_EQ(group.backend(device), "nccl"); }, "auto");
    return lines.text();
  };
  const std::string all = chosen();
  EXPECT_TRUE(contains(all, "nccl for device memory\n")) << all;
  const ScopedVariable peers("BACKPLANE_DOUBLE_PEERS", "3");
  const std::string some = chosen();
  EXPECT_TRUE(contains(some, "nccl for device memory (3 of the 6 pairs of devices do not reach each other")) << some;
}

#ifdef BACKPLANE_TEST_gloo
TEST(Nccl, SharesAGroupWithABackendForTheHost) {
  on_devices(
      2,
      [](ProcessGroup& group, Device device) {
        EXPECT_EQ(group.backend(), "gloo");
        EXPECT_EQ(group.backend(device), "nccl");
        std::vector<int> host = {group.rank()};
        Memory<int32_t> memory = filled<int32_t>(group, device, 1, group.rank());
        group.all_reduce(host);
        group.all_reduce(span(memory, device));
        EXPECT_EQ(host[0], 1);
        EXPECT_EQ(memory[0], 1);
        EXPECT_EQ(group.broadcast_object(group.rank() == 1 ? "of rank 1" : "", 1), "of rank 1");
        group.barrier();
      },
      "cpu:gloo,cuda:" + nccl());
}
#endif

}  // namespace
}  // namespace backplane::test
