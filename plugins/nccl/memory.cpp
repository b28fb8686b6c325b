// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace backplane::nccl {
namespace {

constexpr uint64_t kMostBytes = UINT64_C(1) << 48;  // more than any device has

class DeviceAllocation final : public sdk::Allocation {
 public:
  DeviceAllocation(std::shared_ptr<Allocations> pieces, uint64_t bytes)
      : allocations_(std::move(pieces)), entry_(allocations_->allocate(bytes)) {}
  DeviceAllocation(std::shared_ptr<Allocations> pieces, void* data, uint64_t bytes)
      : allocations_(std::move(pieces)), entry_(allocations_->register_memory(data, bytes)) {}
  ~DeviceAllocation() override { allocations_->release(entry_); }
  DeviceAllocation(const DeviceAllocation&) = delete;
  DeviceAllocation& operator=(const DeviceAllocation&) = delete;
  void* data() const override { return entry_->data; }

 private:
  const std::shared_ptr<Allocations> allocations_;
  Allocations::Entry* const entry_;
};

// How long a registration waits for NCCL to come to the end of a launch, which may have to wait for other ranks.
constexpr auto kRegistering = std::chrono::milliseconds(100);

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
    // The device has failed; its memory no longer exists.
  }
}

// Registering costs time if it fails, or is left out because NCCL is just launching; nothing else.
Allocations::Entry* Allocations::allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  sweep();
  std::list<Entry> fresh(1);
  Entry& entry = fresh.front();
  entry.data = take(bytes);
  entry.is_owned = true;
  try {
    if (comm_ != nullptr && api_.nccl.comm_register != nullptr) {
      comm_->use([this, bytes, &entry](ncclComm_t comm) {
        if (api_.nccl.comm_register(comm, entry.data, bytes, &entry.handle) != ncclSuccess) entry.handle = nullptr;
      });
    }
  } catch (...) {
    give(entry.data);
    throw;
  }
  entries_.splice(entries_.end(), fresh);
  return &entry;
}

Allocations::Entry* Allocations::register_memory(void* data, uint64_t bytes) {
  if (api_.nccl.comm_register == nullptr) {
    throw sdk::Failure(BP_UNSUPPORTED, "nccl: " + api_.library + " has no ncclCommRegister");
  }
  std::list<Entry> fresh(1);
  Entry& entry = fresh.front();
  entry.data = data;
  const OnDevice here(api_, device_);
  ncclResult_t result = ncclInProgress;
  const auto register_it = [this, bytes, &entry, &result](ncclComm_t comm) {
    result = api_.nccl.comm_register(comm, entry.data, bytes, &entry.handle);
  };
  const auto end = std::chrono::steady_clock::now() + kRegistering;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      sweep();
      if (comm_ == nullptr) throw sdk::Failure(BP_UNSUPPORTED, "nccl: the group has ended");
      if (comm_->use(register_it)) {
        if (result != ncclSuccess) break;
        entries_.splice(entries_.end(), fresh);
        return &entry;
      }
    }
    if (std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  throw sdk::Failure(BP_RESOURCE,
                     result == ncclInProgress
                         ? "nccl: the communicator is busy or has failed, and registers no memory"
                         : std::string("nccl: registering memory: ") + api_.nccl.get_error_string(result),
                     -1, result);
}

void Allocations::release(Entry* entry) noexcept {
  const std::lock_guard lock(mutex_);
  entry->is_released = true;
  sweep();
}

void Allocations::sweep() noexcept {
  std::erase_if(entries_, [this](const Entry& entry) {
    if (!entry.is_released) return false;
    if (entry.handle != nullptr && comm_ != nullptr &&
        !comm_->use([this, handle = entry.handle](ncclComm_t comm) { api_.nccl.comm_deregister(comm, handle); })) {
      return false;
    }
    if (entry.is_owned) give(entry.data);
    return true;
  });
}

// What NCCL still knows then, it forgets with the communicator.
void Allocations::end() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  for (Entry& entry : entries_) {
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

void DeviceMemory::require_here(uint32_t memory, int32_t device) const {
  if (memory != BP_CUDA) throw sdk::Failure(BP_UNSUPPORTED, "nccl has to do with device memory, and no other");
  if (device != device_) {
    throw sdk::Failure(BP_UNSUPPORTED, "this group of nccl is on device " + std::to_string(device_) + ", not on " +
                                           std::to_string(device));
  }
}

std::unique_ptr<sdk::Allocation> DeviceMemory::allocate(uint64_t bytes, uint32_t memory, int32_t device) {
  require_here(memory, device);
  return std::make_unique<DeviceAllocation>(allocations_, bytes);
}

std::unique_ptr<sdk::Allocation> DeviceMemory::register_memory(void* data, uint64_t bytes, uint32_t memory,
                                                               int32_t device) {
  require_here(memory, device);
  return std::make_unique<DeviceAllocation>(allocations_, data, bytes);
}

}  // namespace backplane::nccl
