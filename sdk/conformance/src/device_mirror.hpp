// SPDX-License-Identifier: Apache-2.0
//
// Mirrors the host buffers of operations in device memory, so that cases written for host memory run on a device:
// inputs are copied to the mirror before an operation starts, outputs back after it has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backplane/abi/ext/device.h"
#include "backplane/abi/ext/memory.h"

namespace backplane::conformance {

// An agent's device memory for mirrors. Blocks are reused and released at the end, since a release may wait until the
// device is idle. Any thread.
class MirrorMemory {
 public:
  // usable() is false if the agent allocates no device memory, or does not copy to and from it.
  MirrorMemory(const bp_process_group_api& api, void* self);
  ~MirrorMemory();
  MirrorMemory(const MirrorMemory&) = delete;
  MirrorMemory& operator=(const MirrorMemory&) = delete;

  bool usable() const { return device_ >= 0; }
  int32_t device() const { return device_; }
  std::byte* take(uint64_t bytes);  // null: out of memory
  void give(std::byte* data, uint64_t bytes);
  bool copy(void* to, const void* from, uint64_t bytes) const;

 private:
  std::byte* allocate(uint64_t bytes, int32_t device);

  const bp_memory_api* memory_ = nullptr;
  void (*release_)(bp_allocation*) = nullptr;  // outlives the table
  const bp_device_api* copies_ = nullptr;
  int32_t device_ = -1;
  std::mutex mutex_;
  std::multimap<uint64_t, std::byte*> idle_;
  std::vector<bp_allocation*> allocations_;
};

// The mirrors of one operation's buffers.
class DeviceMirror {
 public:
  // Replaces the buffers of *op. ok() is false if there was no memory for them.
  DeviceMirror(std::shared_ptr<MirrorMemory> memory, bp_op* op);
  // Requires that the operation is terminal.
  ~DeviceMirror();
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  bool ok() const { return ok_; }
  // Copies the output of a done operation to the case's buffer. False: the device failed.
  bool copy_back() const;

 private:
  // Host memory that contains one or both buffers, and its mirror.
  struct Span {
    std::byte* begin;
    uint64_t bytes;
    std::byte* mirror;
  };
  void add(std::byte* begin, uint64_t bytes);
  void move(bp_buffer* buffer) const;

  const std::shared_ptr<MirrorMemory> memory_;
  std::vector<Span> spans_;
  std::byte* output_ = nullptr;
  std::byte* output_twin_ = nullptr;
  uint64_t output_bytes_ = 0;
  bool ok_ = true;
};

}  // namespace backplane::conformance
