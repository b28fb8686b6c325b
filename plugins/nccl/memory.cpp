// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <string>

#include "device.hpp"

namespace backplane::nccl {
namespace {

class Allocated final : public sdk::Allocation {
 public:
  Allocated(const Api& api, int device, uint64_t bytes, std::shared_ptr<Registrations> registrations)
      : api_(api), device_(device), registrations_(std::move(registrations)) {
    const OnDevice here(api, device);
    if (api.nccl.mem_alloc != nullptr) {
      check(api, api.nccl.mem_alloc(&data_, bytes), "allocating device memory");
    } else {
      check(api, api.cuda.malloc(&data_, bytes), "allocating device memory");
    }
    registrations_->enter(data_, bytes);
  }
  ~Allocated() override {
    registrations_->leave(data_);
    try {
      const OnDevice here(api_, device_);
      if (api_.nccl.mem_alloc != nullptr) {
        api_.nccl.mem_free(data_);
      } else {
        api_.cuda.free(data_);
      }
    } catch (const sdk::Failure&) {
      // The device is gone, and its memory with it.
    }
  }
  void* data() const override { return data_; }

 private:
  const Api& api_;
  const int device_;
  const std::shared_ptr<Registrations> registrations_;
  void* data_ = nullptr;
};

}  // namespace

// A registration that fails costs time, nothing else.
void Registrations::enter(void* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr || api_.nccl.comm_register == nullptr) return;
  comm_->use([this, data, bytes](ncclComm_t comm) {
    void* handle = nullptr;
    if (api_.nccl.comm_register(comm, data, bytes, &handle) == ncclSuccess) handles_[data] = handle;
  });
}

void Registrations::leave(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(data);
  if (found == handles_.end()) return;
  if (comm_ != nullptr) {
    comm_->use([this, found](ncclComm_t comm) { api_.nccl.comm_deregister(comm, found->second); });
  }
  handles_.erase(found);
}

void Registrations::end() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) {
    comm_->use([this](ncclComm_t comm) {
      for (const auto& [data, handle] : handles_) api_.nccl.comm_deregister(comm, handle);
    });
  }
  handles_.clear();
  comm_ = nullptr;
}

std::unique_ptr<sdk::Allocation> DeviceMemory::allocate(uint64_t bytes, uint32_t memory, int32_t device) {
  if (memory != BP_CUDA) throw sdk::Failure(BP_UNSUPPORTED, "nccl gives out device memory, and no other");
  if (device != device_) {
    throw sdk::Failure(BP_UNSUPPORTED, "this group of nccl is on device " + std::to_string(device_) + ", not on " +
                                           std::to_string(device));
  }
  return std::make_unique<Allocated>(api_, device_, bytes, registrations_);
}

}  // namespace backplane::nccl
