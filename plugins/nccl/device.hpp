// SPDX-License-Identifier: Apache-2.0
//
// A device's things with C++ lifetimes: which device this thread uses, streams, events, memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "api.hpp"

namespace backplane::nccl {

// While it lives, this thread uses that device.
class OnDevice {
 public:
  OnDevice(const Api& api, int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const Api& api_;
  int before_ = 0;
  bool changed_ = false;
};

class Event;
class Pool;

// A stream that does not wait for the default one.
class Stream {
 public:
  Stream(const Api& api, int device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  // When nothing is added any more: has the device done all of it, or failed? `last`, empty at first, is kept until
  // then.
  bool is_still(Pool& pool, Event& last) const noexcept;

 private:
  const Api& api_;
  const int device_;
  cudaStream_t stream_ = nullptr;
};

// The location of a pool's block: the device, or pinned host memory. A copy between the device and pageable host memory
// would block the caller until the stream reaches it.
enum class Where { kDevice, kHost };

// Memory and events that are used again and again: to allocate, and to free all the more, may make the device wait for
// what it is doing, which may wait for a peer. So all of it is kept until the end. Who takes something gets its place
// in the pool with it, so that to give it back needs no memory. Any thread.
class Pool {
 public:
  Pool(const Api& api, int device) : api_(api), device_(device) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  friend class Event;
  friend class Piece;
  using Events = std::list<cudaEvent_t>;
  using Pieces = std::multimap<std::pair<Where, uint64_t>, void*>;
  Events take_event();
  void give_event(Events& event) noexcept;
  Pieces::node_type take(Where where, uint64_t size);
  void give(Pieces::node_type piece) noexcept;

  const Api& api_;
  const int device_;
  std::mutex mutex_;
  Pieces idle_;
  Events idle_events_;
};

// A point in a stream; empty until it is recorded.
class Event {
 public:
  Event() = default;
  // Marks what the stream holds now. This thread is on the stream's device, which is the pool's.
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
  // Has the stream come past it? Throws if the device has failed. Any thread.
  bool passed() const;

 private:
  Pool* pool_ = nullptr;
  Pool::Events event_;  // one, or none
};

// A piece of a pool. Given back when nothing on the device uses it any more.
class Piece {
 public:
  Piece() = default;
  Piece(Pool& pool, uint64_t bytes, Where where = Where::kDevice);
  ~Piece();
  Piece(Piece&& other) noexcept { *this = std::move(other); }
  Piece& operator=(Piece&& other) noexcept;
  std::byte* data() const { return piece_ ? static_cast<std::byte*>(piece_.mapped()) : nullptr; }

 private:
  Pool* pool_ = nullptr;
  Pool::Pieces::node_type piece_;
};

}  // namespace backplane::nccl
