// SPDX-License-Identifier: Apache-2.0
//
// A device's things with C++ lifetimes: which device this thread uses, streams, events, memory.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

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

// A stream that does not wait for the default one.
class Stream {
 public:
  Stream(const Api& api, int device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  const Api& api_;
  cudaStream_t stream_ = nullptr;
};

// A point in a stream; empty until it is recorded.
class Event {
 public:
  Event() = default;
  // Marks what the stream holds now. This thread is on the stream's device.
  Event(const Api& api, cudaStream_t stream);
  ~Event() { reset(); }
  Event(Event&& other) noexcept : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(event_, other.event_);
    return *this;
  }
  explicit operator bool() const { return event_ != nullptr; }
  cudaEvent_t get() const { return event_; }
  // Has the stream come past it? Throws if the device has failed. Any thread.
  bool passed() const;

 private:
  void reset();
  const Api* api_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

// Device memory that is used again and again: to allocate costs the device a stop. Any thread.
class DevicePool {
 public:
  DevicePool(const Api& api, int device) : api_(api), device_(device) {}
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

 private:
  friend class DeviceBuffer;
  void* take(uint64_t size);
  void give(void* data, uint64_t size) noexcept;
  static constexpr uint64_t kMost = UINT64_C(256) << 20;  // bytes that are kept

  const Api& api_;
  const int device_;
  std::mutex mutex_;
  std::multimap<uint64_t, void*> idle_;  // by size
  uint64_t kept_ = 0;
};

// A piece of a pool. Given back when nothing on the device uses it any more.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DevicePool& pool, uint64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  DevicePool* pool_ = nullptr;
  void* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace backplane::nccl
