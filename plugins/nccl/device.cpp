// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <algorithm>
#include <bit>

namespace backplane::nccl {

OnDevice::OnDevice(const Api& api, int device) : api_(api) {
  check(api, api.cuda.get_device(&before_), "asking for the current device");
  if (before_ == device) return;
  check(api, api.cuda.set_device(device), "choosing the device");
  changed_ = true;
}

OnDevice::~OnDevice() {
  if (changed_) api_.cuda.set_device(before_);
}

Stream::Stream(const Api& api, int device) : api_(api) {
  const OnDevice here(api, device);
  check(api, api.cuda.stream_create(&stream_, cudaStreamNonBlocking), "making a stream");
}

Stream::~Stream() { api_.cuda.stream_destroy(stream_); }

Event::Event(const Api& api, cudaStream_t stream) : api_(&api) {
  check(api, api.cuda.event_create(&event_, cudaEventDisableTiming), "making an event");
  const cudaError_t result = api.cuda.event_record(event_, stream);
  if (result == cudaSuccess) return;
  reset();
  check(api, result, "recording an event");
}

void Event::reset() {
  if (event_ != nullptr) api_->cuda.event_destroy(std::exchange(event_, nullptr));
}

bool Event::passed() const {
  const cudaError_t result = api_->cuda.event_query(event_);
  if (result == cudaErrorNotReady) {
    api_->cuda.get_last_error();
    return false;
  }
  check(*api_, result, "waiting for the device");
  return true;
}

DevicePool::~DevicePool() {
  for (const auto& [size, data] : idle_) api_.cuda.free(data);
}

void* DevicePool::take(uint64_t size) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = idle_.find(size);
    if (found != idle_.end()) {
      void* const data = found->second;
      idle_.erase(found);
      kept_ -= size;
      return data;
    }
  }
  const OnDevice here(api_, device_);
  void* data = nullptr;
  check(api_, api_.cuda.malloc(&data, size), "allocating device memory to stage a buffer");
  return data;
}

void DevicePool::give(void* data, uint64_t size) noexcept {
  const std::lock_guard lock(mutex_);
  if (kept_ + size > kMost) {
    api_.cuda.free(data);
    return;
  }
  idle_.emplace(size, data);
  kept_ += size;
}

// Powers of two, so that pieces fit again.
DeviceBuffer::DeviceBuffer(DevicePool& pool, uint64_t bytes)
    : pool_(&pool), size_(std::bit_ceil(std::max<uint64_t>(bytes, 512))) {
  data_ = pool.take(size_);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) pool_->give(data_, size_);
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace backplane::nccl
