// SPDX-License-Identifier: Apache-2.0
//
// How groups of nccl start: missing libraries and drivers, the choice of the device, `auto`.
#include <optional>

#include "support.hpp"

namespace backplane::test {
namespace {

TEST(Nccl, NamesTheMissingLibraryOrFunction) {
  const std::string none = refusal("nccl?library=/nowhere/libnccl.so.2", Status::kUnsupported);
  EXPECT_TRUE(contains(none, "NCCL cannot be loaded") && contains(none, "/nowhere/libnccl.so.2")) << none;
  const std::string other = refusal("nccl?library=libm.so.6", Status::kUnsupported);
  EXPECT_TRUE(contains(other, "libm.so.6 has no function ncclGetVersion")) << other;
}

TEST(Nccl, ReportsAMissingDriverOrDevice) {
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

// NCCL before 2.23 launches on the caller's thread, where an abort would have to wait for room in a stream.
TEST(Nccl, RefusesOlderLibraries) {
  std::string other_name = kDouble;  // a library that was opened stays open, so open it by another name
  other_name.insert(other_name.rfind('/'), "/.");
  const ScopedVariable old("BACKPLANE_DOUBLE_VERSION", "22203");
  const std::string text = refusal("nccl?library=" + other_name, Status::kUnsupported);
  EXPECT_TRUE(contains(text, "is NCCL 2.22.3; NCCL 2.23 or newer is needed")) << text;
}

TEST(Nccl, NeverGuessesTheDevice) {
  EXPECT_TRUE(contains(refusal(nccl(), Status::kInvalid, -1), "rank 0 has no device; set GroupOptions::device"));
  EXPECT_TRUE(contains(refusal(nccl(), Status::kInvalid, 8), "cannot use device 8: this machine has devices 0 to 7"));
  EXPECT_TRUE(contains(refusal(nccl("device=first"), Status::kInvalid), "option device must be a number"));
  const ProcessGroup group = ProcessGroup::create(
      group_options(nccl("device=7"), Store::inproc(), 0, 1));  // the option names a device as well
  EXPECT_EQ(group.backend(Device::cuda(7)), "nccl");
}

// NCCL is still connecting at the deadline of init.
TEST(Nccl, KeepsTheDeadlineOfInit) {
  const ScopedVariable never("BACKPLANE_DOUBLE_CONNECTS", "0");
  GroupOptions options = on_device(nccl(), Store::inproc(), 0, 1, 0);
  options.timeout = std::chrono::seconds(3);
  std::string text;
  EXPECT_EQ(failure_of([&] { ProcessGroup::create(options); }, &text), Status::kTimeout);
  EXPECT_TRUE(contains(text, "NCCL did not connect them within the timeout of init")) << text;
}

TEST(Nccl, WorksWithoutOptionalFunctions) {
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

TEST(Nccl, ReducesF8OnDevicesThatSupportIt) {
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

TEST(Nccl, IsChosenByAutoForDevices) {
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
  // A group of one rank gets it as well. Without a driver it gets no backend for devices.
  const ProcessGroup alone = ProcessGroup::create(on_device("auto", Store::inproc(), 0, 1, 3));
  EXPECT_EQ(alone.backend(), "self");
  EXPECT_EQ(alone.backend(Device::cuda(3)), "nccl");
  const ScopedVariable no_driver("BACKPLANE_DOUBLE_DRIVER", "0");
  const ProcessGroup without = ProcessGroup::create(on_device("auto", Store::inproc(), 0, 1, 3));
  EXPECT_EQ(without.backend(Device::cuda(3)), "self");
}

// NCCL works without peer access, but slower.
TEST(Nccl, ReportsPairsOfDevicesWithoutPeerAccess) {
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
  EXPECT_TRUE(contains(some, "nccl for device memory (3 of 6 pairs of devices have no peer access")) << some;
}

#ifdef BACKPLANE_TEST_gloo
TEST(Nccl, SharesAGroupWithABackendForHostMemory) {
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
