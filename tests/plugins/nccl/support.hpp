// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of nccl. They run over the test double of NCCL and CUDA, whose device memory is host memory that
// tests may read and write.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <string>

#include "backplane/backplane.hpp"
#include "double/settings.hpp"
#include "support/environment.hpp"
#include "support/eventually.hpp"
#include "support/groups.hpp"

namespace backplane::test {

inline constexpr const char* kDouble = BACKPLANE_NCCL_DOUBLE;

inline std::string nccl(std::string options = {}) {
  if (!options.empty()) options.insert(0, "&");
  options.insert(0, kDouble);
  return options.insert(0, "nccl?library=");
}

inline GroupOptions on_device(const std::string& backend, const Store& store, int rank, int world_size, int device) {
  GroupOptions options = group_options(backend, store, rank, world_size);
  options.device = device;
  return options;
}

// Runs body(group, device) on ranks of this process with one device each.
inline void on_devices(int world_size, const std::function<void(ProcessGroup&, Device)>& body,
                       const std::string& backend = nccl()) {
  const Store store = Store::inproc();
  on_ranks(world_size, [&](int rank) {
    ProcessGroup group = ProcessGroup::create(on_device(backend, store, rank, world_size, rank));
    body(group, Device::cuda(rank));
  });
}

template <Element T>
Buffer span(Memory<T>& memory, Device device) {
  return Buffer(memory.data(), memory.size(), dtype_of<T>, device);
}

template <Element T>
Memory<T> filled(ProcessGroup& group, Device device, uint64_t count, T value) {
  Memory<T> memory = group.allocate<T>(count, device);
  std::fill(memory.begin(), memory.end(), value);
  return memory;
}

template <Element T>
bool all_are(const Memory<T>& memory, T value) {
  return std::all_of(memory.begin(), memory.end(), [value](T each) { return each == value; });
}

inline CallOptions async() {
  CallOptions options;
  options.async_op = true;
  return options;
}

inline void await(std::promise<void>& event) {
  EXPECT_EQ(event.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Collects the lines of the log during its lifetime.
class LogLines {
 public:
  LogLines() { bp_set_log(add, this); }
  ~LogLines() { bp_set_log(nullptr, nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  static void add(void* ctx, uint32_t, const char* line) {
    auto* const lines = static_cast<LogLines*>(ctx);
    const std::lock_guard lock(lines->mutex_);
    lines->text_.append(line).append("\n");
  }
  std::mutex mutex_;
  std::string text_;
};

// The error of a group of one rank that fails to start.
inline std::string refusal(const std::string& backend, Status expected, int device = 0) {
  std::string text;
  const auto start = [&] { ProcessGroup::create(on_device(backend, Store::inproc(), 0, 1, device)); };
  EXPECT_EQ(failure_of(start, &text), expected) << text;
  return text;
}

// A stream of the device, which becomes the current one of this thread.
class TestStream {
 public:
  explicit TestStream(Device device) {
    EXPECT_EQ(cudaSetDevice(device.ordinal), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  cudaStream_t get() const { return stream_; }
  CallOptions async() const {
    CallOptions options;
    options.async_op = true;
    options.stream = stream_;
    return options;
  }
  void copy(Memory<int32_t>& to, const Memory<int32_t>& from) const {
    cudaMemcpyAsync(to.data(), from.data(), from.size() * 4, cudaMemcpyDeviceToDevice, stream_);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace backplane::test
