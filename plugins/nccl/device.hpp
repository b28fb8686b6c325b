// SPDX-License-Identifier: Apache-2.0
//
// Devices, streams, events and reusable memory as C++ objects, and the staging of host buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "api.hpp"
#include "backplane/abi/op.h"
#include "backplane/sdk/poller.hpp"

namespace backplane::nccl {

// Makes `device` the thread's current device, and restores the previous one.
class OnDevice {
 public:
  OnDevice(const Api& api, int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const Api& api_;
  int previous_ = 0;
  bool changed_ = false;
};

// Makes `device` the current device of the thread that calls `progress`, for good: restoring device 0 would create a
// context there.
sdk::Poller::Progress on_device(const Api& api, int device, sdk::Poller::Progress progress);

class Event;
class GroupFailure;
class Pool;

// Shared by the parts of a group.
struct GroupContext {
  const Api& api;
  int device;
  int32_t rank;
  int32_t size;
  GroupFailure& failure;
  Pool& pool;
};

// A stream that does not wait for the default one.
class Stream {
 public:
  Stream(const Api& api, int device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  // Whether the device has executed the whole stream, or failed. Call when nothing is added to it any more, with the
  // same `last`, which is empty at first.
  bool is_idle(Pool& pool, Event& last) const noexcept;

 private:
  const Api& api_;
  const int device_;
  cudaStream_t stream_ = nullptr;
};

// kHost is pinned memory: a copy between the device and pageable memory would block the caller until the stream reaches
// it.
enum class MemoryKind { kDevice, kHost };

// Reuses memory and events, and frees them in its destructor only: allocating and freeing may wait for all work of the
// device, which may wait for a peer. An object in use keeps its node of the pool's container, so that returning it
// needs no memory. Thread-safe.
class Pool {
 public:
  Pool(const Api& api, int device) : api_(api), device_(device) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  friend class Event;
  friend class PooledMemory;
  using Events = std::list<cudaEvent_t>;
  using Blocks = std::multimap<std::pair<MemoryKind, uint64_t>, void*>;  // by kind and bytes
  Events take_event();
  void give_back(Events& event) noexcept;
  Blocks::node_type take(MemoryKind kind, uint64_t bytes);
  void give_back(Blocks::node_type block) noexcept;

  const Api& api_;
  const int device_;
  std::mutex mutex_;
  Blocks idle_;
  Events idle_events_;
};

// A point in a stream; empty until it is recorded.
class Event {
 public:
  Event() = default;
  // Records the end of what the stream holds now. The thread must be on the pool's device, which is the stream's.
  Event(Pool& pool, cudaStream_t stream);
  ~Event();
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept {
    std::swap(pool_, other.pool_);
    event_.swap(other.event_);
    return *this;
  }
  explicit operator bool() const { return !event_.empty(); }
  cudaEvent_t get() const { return event_.front(); }
  // Whether the stream has passed it. Throws if the device has failed. Thread-safe.
  bool passed() const;

 private:
  Pool* pool_ = nullptr;
  Pool::Events event_;  // one or none
};

// Memory of a pool. Destroy it when nothing on the device uses it any more.
class PooledMemory {
 public:
  PooledMemory() = default;
  PooledMemory(Pool& pool, uint64_t bytes, MemoryKind kind = MemoryKind::kDevice);
  ~PooledMemory();
  PooledMemory(PooledMemory&& other) noexcept { *this = std::move(other); }
  PooledMemory& operator=(PooledMemory&& other) noexcept;
  std::byte* data() const { return block_ ? static_cast<std::byte*>(block_.mapped()) : nullptr; }

 private:
  Pool* pool_ = nullptr;
  Pool::Blocks::node_type block_;
};

// Device memory that replaces a caller's host buffer, and pinned memory for the copies between them.
struct StagingBuffer {
  StagingBuffer() = default;
  StagingBuffer(Pool& pool, uint64_t bytes) : device(pool, bytes), host(pool, bytes, MemoryKind::kHost) {}
  // Copies the caller's buffer to `host` at once, and from there to `device` in the stream.
  void copy_in(const Api& api, const void* from, uint64_t bytes, cudaStream_t stream) const;
  // Copies `device` to `host` in the stream.
  void copy_out(const Api& api, uint64_t bytes, cudaStream_t stream) const;

  PooledMemory device;
  PooledMemory host;
};

// The staging of a collective's host buffers.
class Staging {
 public:
  // Replaces the host buffers of *op, if any, by device memory, and enqueues copies of what the operation reads or
  // leaves unchanged. An operation in place stays in place. Does not wait for the stream.
  Staging(const Api& api, Pool& pool, bp_op* op, cudaStream_t stream);
  // Enqueues the copy of the result to pinned memory.
  void copy_out(cudaStream_t stream) const;
  // Copies the result to the caller's buffer. Call once the stream has passed copy_out.
  void finish() const;

 private:
  const Api& api_;
  StagingBuffer input_;
  StagingBuffer output_;  // empty if the output lies within the input, or there is none
  std::byte* caller_output_ = nullptr;
  std::byte* device_output_ = nullptr;
  std::byte* host_output_ = nullptr;
  uint64_t output_bytes_ = 0;
};

}  // namespace backplane::nccl
