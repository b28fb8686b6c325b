// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "backplane/base/deadline.hpp"
#include "backplane/base/grace.hpp"

namespace backplane::nccl {
namespace {

constexpr uint64_t kMaxBytes = UINT64_C(1) << 48;  // more than any device has; the library would overflow rounding up

class DeviceAllocation final : public sdk::Allocation {
 public:
  DeviceAllocation(std::shared_ptr<Allocations> allocations, uint64_t bytes)
      : allocations_(std::move(allocations)), entry_(allocations_->allocate(bytes)) {}
  DeviceAllocation(std::shared_ptr<Allocations> allocations, void* data, uint64_t bytes)
      : allocations_(std::move(allocations)), entry_(allocations_->register_memory(data, bytes)) {}
  ~DeviceAllocation() override { allocations_->release(entry_); }
  DeviceAllocation(const DeviceAllocation&) = delete;
  DeviceAllocation& operator=(const DeviceAllocation&) = delete;
  void* data() const override { return entry_->data; }

 private:
  const std::shared_ptr<Allocations> allocations_;
  Allocations::Entry* const entry_;
};

}  // namespace

void* Allocations::allocate_device(uint64_t bytes) const {
  if (bytes > kMaxBytes) {
    throw sdk::Failure(BP_RESOURCE,
                       "nccl: cannot allocate " + std::to_string(bytes) + " bytes: no device has so much memory");
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

void Allocations::free_device(void* data) const noexcept {
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

// If the registration fails or NCCL is launching, the memory stays unregistered, which is slower.
Allocations::Entry* Allocations::allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  free_released();
  std::list<Entry> fresh(1);
  Entry& entry = fresh.front();
  entry.data = allocate_device(bytes);
  entry.is_owned = true;
  try {
    if (comm_ != nullptr && api_.nccl.comm_register != nullptr) {
      comm_->run_if_idle([this, bytes, &entry](ncclComm_t comm) {
        if (api_.nccl.comm_register(comm, entry.data, bytes, &entry.handle) != ncclSuccess) entry.handle = nullptr;
      });
    }
  } catch (...) {
    free_device(entry.data);
    throw;
  }
  entries_.splice(entries_.end(), fresh);
  return &entry;
}

Allocations::Entry* Allocations::register_memory(void* data, uint64_t bytes) {
  if (api_.nccl.comm_register == nullptr) {
    throw sdk::Failure(BP_UNSUPPORTED, "nccl: cannot register memory: " + api_.library + " has no ncclCommRegister");
  }
  std::list<Entry> fresh(1);
  Entry& entry = fresh.front();
  entry.data = data;
  const OnDevice here(api_, device_);
  ncclResult_t result = ncclInProgress;
  const auto register_it = [this, bytes, &entry, &result](ncclComm_t comm) {
    result = api_.nccl.comm_register(comm, entry.data, bytes, &entry.handle);
  };
  const base::Deadline deadline = base::Deadline::after(base::grace::kRegistration);
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      free_released();
      if (comm_ == nullptr) throw sdk::Failure(BP_UNSUPPORTED, "nccl: cannot register memory: the group has ended");
      if (comm_->run_if_idle(register_it)) {
        if (result != ncclSuccess) break;
        entries_.splice(entries_.end(), fresh);
        return &entry;
      }
    }
    if (deadline.passed()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  throw sdk::Failure(BP_RESOURCE,
                     result == ncclInProgress
                         ? "nccl: cannot register memory: the communicator is busy or has failed"
                         : std::string("nccl: cannot register memory: ") + api_.nccl.get_error_string(result),
                     -1, result);
}

void Allocations::release(Entry* entry) noexcept {
  const std::lock_guard lock(mutex_);
  entry->is_released = true;
  free_released();
}

void Allocations::free_released() noexcept {
  std::erase_if(entries_, [this](const Entry& entry) {
    if (!entry.is_released) return false;
    if (entry.handle != nullptr && comm_ != nullptr &&
        !comm_->run_if_idle(
            [this, handle = entry.handle](ncclComm_t comm) { api_.nccl.comm_deregister(comm, handle); })) {
      return false;
    }
    if (entry.is_owned) free_device(entry.data);
    return true;
  });
}

// Registrations that remain end with the communicator.
void Allocations::end() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  for (Entry& entry : entries_) {
    if (entry.handle == nullptr) continue;
    comm_->run_if_idle([this, handle = entry.handle](ncclComm_t comm) { api_.nccl.comm_deregister(comm, handle); });
    entry.handle = nullptr;
  }
  comm_ = nullptr;
  free_released();
}

void DeviceMemory::copy(void* to, const void* from, uint64_t bytes) {
  const OnDevice here(api_, device_);
  check(api_, api_.cuda.memcpy_async(to, from, bytes, cudaMemcpyDefault, copy_stream_.get()), "copying device memory");
  check(api_, api_.cuda.stream_synchronize(copy_stream_.get()), "copying device memory");
}

void DeviceMemory::require_device(uint32_t memory, int32_t device) const {
  if (memory != BP_CUDA) throw sdk::Failure(BP_UNSUPPORTED, "nccl: only device memory can be allocated or registered");
  if (device != device_) {
    throw sdk::Failure(BP_UNSUPPORTED, "nccl: cannot use memory of device " + std::to_string(device) +
                                           ": this rank uses device " + std::to_string(device_));
  }
}

std::unique_ptr<sdk::Allocation> DeviceMemory::allocate(uint64_t bytes, uint32_t memory, int32_t device) {
  require_device(memory, device);
  return std::make_unique<DeviceAllocation>(allocations_, bytes);
}

std::unique_ptr<sdk::Allocation> DeviceMemory::register_memory(void* data, uint64_t bytes, uint32_t memory,
                                                               int32_t device) {
  require_device(memory, device);
  return std::make_unique<DeviceAllocation>(allocations_, data, bytes);
}

}  // namespace backplane::nccl
