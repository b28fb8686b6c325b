// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the double.
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

// What an event waits for; it may be destroyed while a stream still has to pass it.
class Mark {
 public:
  uint64_t record();           // the number of this recording
  void pass(uint64_t number);  // the stream has come to it
  void await(uint64_t number);
  uint64_t recorded();
  bool passed();  // the last recording; also if there is none

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t passed_ = 0;
};

// A thread that does one thing after the other. Its destructor does all that is left.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // Blocks while the stream is full.
  void add(std::function<void()> task);
  // Does not: calls `entered` when there is room.
  void add_behind(std::function<void()> task, std::function<void()> entered);

 private:
  struct Item {
    std::function<void()> task;
    std::function<void()> entered;
  };
  void run();
  const uint64_t most_ = static_cast<uint64_t>(setting("BACKPLANE_DOUBLE_QUEUE", INT64_MAX));
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace backplane::nccl_double

namespace backplane::nccl_double {
// The device that this thread has chosen.
int& current_device();

// Is this call one that is to fail (double_fail)?
bool fails();

// What was allocated: device memory, or host memory that the device reaches.
struct Block {
  size_t size;
  bool is_host;
  int device;
};
// Waits until all streams of a device have done what they hold now.
void synchronize(int device);
// The block that this address lies in; nothing: it is ordinary memory of the host.
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
// The stream of a handle; null is the stream that each device has from the start.
Stream& stream_of(CUstream_st* handle);
inline int device_of(const CUstream_st* handle) { return handle == nullptr ? current_device() : handle->device; }
}  // namespace backplane::nccl_double
