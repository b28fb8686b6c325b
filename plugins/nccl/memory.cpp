// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <string>
#include <utility>

namespace backplane::nccl {
namespace {

constexpr uint64_t kMostBytes = UINT64_C(1) << 48;  // more than any device has

class DeviceAllocation final : public sdk::Allocation {
 public:
  DeviceAllocation(std::shared_ptr<Allocations> pieces, uint64_t bytes)
      : allocations_(std::move(pieces)), data_(allocations_->allocate(bytes)) {}
  ~DeviceAllocation() override { allocations_->release(data_); }
  void* data() const override { return data_; }

 private:
  const std::shared_ptr<Allocations> allocations_;
  void* const data_;
};

}  // namespace

void* Allocations::take(uint64_t bytes) const {
  // The library rounds up.
  if (bytes > kMostBytes) {
    throw sdk::Failure(BP_RESOURCE, "nccl: no device has " + std::to_string(bytes) + " bytes of memory");
  }
  const OnDevice here(api_, device_);
  void* data = nullptr;
  if (api_.nccl.mem_alloc != nullptr) {
    check(api_, api_.nccl.mem_alloc(&data, bytes), "allocating device memory");
  } else {
    check(api_, api_.cuda.malloc(&data, bytes), "allocating device memory");
  }
  return data;
}

void Allocations::give(void* data) const noexcept {
  try {
    const OnDevice here(api_, device_);
    if (api_.nccl.mem_alloc != nullptr) {
      api_.nccl.mem_free(data);
    } else {
      api_.cuda.free(data);
    }
  } catch (const sdk::Failure&) {
    // The device is gone, and its memory with it.
  }
}

// Registering costs time if it fails, or is left out because NCCL is just launching; nothing else.
void* Allocations::allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  sweep();
  void* const data = take(bytes);
  try {
    Entry& entry = allocations_[data];
    if (comm_ == nullptr || api_.nccl.comm_register == nullptr) return data;
    comm_->use([this, data, bytes, &entry](ncclComm_t comm) {
      if (api_.nccl.comm_register(comm, data, bytes, &entry.handle) != ncclSuccess) entry.handle = nullptr;
    });
  } catch (...) {
    allocations_.erase(data);
    give(data);
    throw;
  }
  return data;
}

void Allocations::release(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  allocations_[data].is_released = true;
  sweep();
}

void Allocations::sweep() noexcept {
  std::erase_if(allocations_, [this](const auto& item) {
    const Entry& entry = item.second;
    if (!entry.is_released) return false;
    if (entry.handle != nullptr && comm_ != nullptr &&
        !comm_->use([this, handle = entry.handle](ncclComm_t comm) { api_.nccl.comm_deregister(comm, handle); })) {
      return false;
    }
    give(item.first);
    return true;
  });
}

// What NCCL still knows then, it forgets with the communicator.
void Allocations::end() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  for (auto& [data, entry] : allocations_) {
    if (entry.handle == nullptr) continue;
    comm_->use([this, handle = entry.handle](ncclComm_t comm) { api_.nccl.comm_deregister(comm, handle); });
    entry.handle = nullptr;
  }
  comm_ = nullptr;
  sweep();
}

void DeviceMemory::copy(void* to, const void* from, uint64_t bytes) {
  const OnDevice here(api_, device_);
  check(api_, api_.cuda.memcpy_async(to, from, bytes, cudaMemcpyDefault, copying_.get()), "copying device memory");
  check(api_, api_.cuda.stream_synchronize(copying_.get()), "copying device memory");
}

std::unique_ptr<sdk::Allocation> DeviceMemory::allocate(uint64_t bytes, uint32_t memory, int32_t device) {
  if (memory != BP_CUDA) throw sdk::Failure(BP_UNSUPPORTED, "nccl gives out device memory, and no other");
  if (device != device_) {
    throw sdk::Failure(BP_UNSUPPORTED, "this group of nccl is on device " + std::to_string(device_) + ", not on " +
                                           std::to_string(device));
  }
  return std::make_unique<DeviceAllocation>(allocations_, bytes);
}

}  // namespace backplane::nccl
