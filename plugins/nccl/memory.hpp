// SPDX-License-Identifier: Apache-2.0
//
// Device memory for programs: from ncclMemAlloc, registered with the group's communicator, if the library has these
// functions, else from cudaMalloc. The program's own device memory can be registered as well.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "backplane/sdk/device.hpp"
#include "backplane/sdk/memory.hpp"
#include "communicator.hpp"
#include "device.hpp"

namespace backplane::nccl {

// The allocations of a group. Outlives the group, because they may. Thread-safe.
class Allocations {
 public:
  Allocations(const Api& api, int device, Communicator& comm) : api_(api), device_(device), comm_(&comm) {}
  struct Entry {
    void* data = nullptr;
    bool is_owned = false;   // from `allocate`
    void* handle = nullptr;  // of the registration; null: not registered
    bool is_released = false;
  };

  Entry* allocate(uint64_t bytes);
  // Blocks up to base::grace::kRegistration. Throws BP_UNSUPPORTED if the library cannot register memory, BP_RESOURCE
  // if it refuses or is still launching.
  Entry* register_memory(void* data, uint64_t bytes);
  // Frees or deregisters it. If NCCL is launching, a registered entry waits for the next call of this class.
  void release(Entry* entry) noexcept;
  // Deregisters all entries and forgets the communicator.
  void end() noexcept;

 private:
  void* allocate_device(uint64_t bytes) const;
  void free_device(void* data) const noexcept;
  void free_released() noexcept;

  const Api& api_;
  const int device_;
  std::mutex mutex_;
  Communicator* comm_;  // null after end
  std::list<Entry> entries_;
};

class DeviceMemory final : public sdk::MemoryPool, public sdk::DeviceTable {
 public:
  using sdk::MemoryPool::table;
  DeviceMemory(const Api& api, int device, Communicator& comm)
      : api_(api),
        device_(device),
        copy_stream_(api, device),
        allocations_(std::make_shared<Allocations>(api, device, comm)) {}
  ~DeviceMemory() override { end(); }
  // Call before the communicator ends. Allocations stay valid, unregistered.
  void end() noexcept { allocations_->end(); }
  std::unique_ptr<sdk::Allocation> allocate(uint64_t bytes, uint32_t memory, int32_t device) override;
  std::unique_ptr<sdk::Allocation> register_memory(void* data, uint64_t bytes, uint32_t memory,
                                                   int32_t device) override;
  const bp_device_api* device_table() const { return DeviceTable::table(); }
  void copy(void* to, const void* from, uint64_t bytes) override;

 private:
  void require_device(uint32_t memory, int32_t device) const;

  const Api& api_;
  const int device_;
  const Stream copy_stream_;
  const std::shared_ptr<Allocations> allocations_;
};

}  // namespace backplane::nccl
