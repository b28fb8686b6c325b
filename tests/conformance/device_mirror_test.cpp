// SPDX-License-Identifier: Apache-2.0
//
// Device memory in cases, from backends with short extension tables or little memory.
#include "device_mirror.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "supervisor.hpp"

namespace backplane::conformance {
namespace {

// The backend's state, which is its agent's `self`.
struct Offer {
  bp_memory_api memory = {sizeof(bp_memory_api), 0, this, allocate, release, nullptr};
  bp_device_api device = {};
  int pieces = 1000;

  Offer() {
    device.struct_size = sizeof device;
    device.copy = copy;
  }

  static int32_t allocate(void* ctx, uint64_t bytes, uint32_t, int32_t, bp_allocation** allocation, void** data,
                          bp_error*) {
    if (static_cast<Offer*>(ctx)->pieces-- <= 0) return BP_RESOURCE;
    *data = ::operator new(bytes);
    *allocation = static_cast<bp_allocation*>(*data);
    return BP_OK;
  }
  static void release(bp_allocation* allocation) { ::operator delete(allocation); }
  static int32_t copy(void*, void* to, const void* from, uint64_t bytes, bp_error*) {
    std::memcpy(to, from, bytes);
    return BP_OK;
  }
  static const void* extension(void* self, const char* id) {
    auto* const offer = static_cast<Offer*>(self);
    if (std::strcmp(id, BP_EXT_MEMORY) == 0) return &offer->memory;
    return std::strcmp(id, BP_EXT_DEVICE) == 0 ? &offer->device : nullptr;
  }
};

std::shared_ptr<MirrorMemory> memory_of(Offer& offer) {
  bp_process_group_api api = {};
  api.struct_size = sizeof api;
  api.extension = Offer::extension;
  return std::make_shared<MirrorMemory>(api, &offer);
}

TEST(MirrorMemory, IsOfTablesThatAreWhole) {
  Offer whole;
  EXPECT_TRUE(memory_of(whole)->usable());
  Offer short_memory;
  short_memory.memory.struct_size = offsetof(bp_memory_api, release);
  EXPECT_FALSE(memory_of(short_memory)->usable());
  Offer no_release;
  no_release.memory.release = nullptr;
  EXPECT_FALSE(memory_of(no_release)->usable());
  Offer no_allocate;
  no_allocate.memory.allocate = nullptr;
  EXPECT_FALSE(memory_of(no_allocate)->usable());
  Offer short_device;
  short_device.device.struct_size = offsetof(bp_device_api, copy);
  EXPECT_FALSE(memory_of(short_device)->usable());
}

// The first allocation detects whether the backend has device memory.
void use_two_pieces(Rank& rank) {
  Offer offer;
  offer.pieces = 2;
  const auto memory = memory_of(offer);
  uint64_t value = 0;
  bp_op first = send_op(0, 1, &value, sizeof value);
  bp_op second = first;
  bp_op third = first;
  const auto first_mirror = mirror(rank, memory, &first);
  const auto other = mirror(rank, memory, &second);
  rank.check(first.input.memory == BP_CUDA && second.input.data != first.input.data, "two stand-ins", "one");
  mirror(rank, memory, &third);
  rank.check(false, "nothing", "a third stand-in");
}

TEST(DeviceMirror, LeavesTheCaseWithoutMemory) {
  Case small{};
  small.loads = false;
  small.body = use_two_pieces;
  const Outcomes outcomes = run_case(small, {}, {});
  ASSERT_EQ(outcomes.findings.size(), 1);
  EXPECT_EQ(outcomes.findings[0].expected, "memory of the device for an operation");
}

}  // namespace
}  // namespace backplane::conformance
