// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the test double.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "settings.hpp"

namespace backplane::nccl_double {

// The recordings of an event. Shared with streams, which may still have to pass it when the event is destroyed.
class Mark {
 public:
  uint64_t record();           // returns the number of this recording
  void pass(uint64_t number);  // the stream has reached it
  void await(uint64_t number);
  uint64_t recorded();
  bool passed();  // the last recording, or there is none

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t passed_ = 0;
};

// A thread that runs tasks in order. Its destructor runs the remaining ones.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // Blocks while the stream is full.
  void add(std::function<void()> task);
  // Does not block. Calls `entered` when the stream has room.
  void add_behind(std::function<void()> task, std::function<void()> entered);

 private:
  struct Item {
    std::function<void()> task;
    std::function<void()> entered;
  };
  void run();
  const uint64_t capacity_ = static_cast<uint64_t>(setting("BACKPLANE_DOUBLE_QUEUE", INT64_MAX));
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace backplane::nccl_double

namespace backplane::nccl_double {
// The current device of this thread.
int& current_device();

// Whether this call must fail (double_fail).
bool fails();

// An allocation of device memory or pinned host memory.
struct Block {
  size_t size;
  bool is_host;
  int device;
};
// Waits until all streams of a device have run their present tasks.
void synchronize(int device);
// The allocation that contains this address; nothing: it is pageable host memory.
std::optional<Block> block_of(const void* data);
}  // namespace backplane::nccl_double

// The types behind cudaStream_t and cudaEvent_t.
struct CUstream_st {
  CUstream_st();
  ~CUstream_st();
  backplane::nccl_double::Stream stream;
  const int device = backplane::nccl_double::current_device();
};
struct CUevent_st {
  const int device = backplane::nccl_double::current_device();
  std::shared_ptr<backplane::nccl_double::Mark> mark = std::make_shared<backplane::nccl_double::Mark>();
};

namespace backplane::nccl_double {
// The stream of a handle; null: the default stream of the current device.
Stream& stream_of(CUstream_st* handle);
inline int device_of(const CUstream_st* handle) { return handle == nullptr ? current_device() : handle->device; }
}  // namespace backplane::nccl_double
