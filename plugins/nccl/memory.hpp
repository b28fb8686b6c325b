// SPDX-License-Identifier: Apache-2.0
//
// Device memory that NCCL knows: from ncclMemAlloc, registered with the group's communicator, where the library has
// these; else from cudaMalloc. And the program's own device memory, registered likewise.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "backplane/sdk/device.hpp"
#include "backplane/sdk/memory.hpp"
#include "communicator.hpp"
#include "device.hpp"

namespace backplane::nccl {

// The pieces that were given out. Outlives the group, because they may. Any thread.
class Allocations {
 public:
  Allocations(const Api& api, int device, Communicator& comm) : api_(api), device_(device), comm_(&comm) {}
  struct Entry {
    void* data = nullptr;
    bool is_owned = false;   // from `allocate`
    void* handle = nullptr;  // NCCL's; null: it does not know this entry
    bool is_released = false;
  };

  Entry* allocate(uint64_t bytes);
  // Throws BP_UNSUPPORTED if the library cannot, BP_RESOURCE if it refuses or is still launching.
  Entry* register_memory(void* data, uint64_t bytes);
  // Frees or deregisters it; if NCCL knows it and is just launching, when memory is next asked for or given back, or at
  // the end.
  void release(Entry* entry) noexcept;
  void end() noexcept;

 private:
  void* take(uint64_t bytes) const;
  void give(void* data) const noexcept;
  void sweep() noexcept;

  const Api& api_;
  const int device_;
  std::mutex mutex_;
  Communicator* comm_;  // null: ended
  std::list<Entry> entries_;
};

class DeviceMemory final : public sdk::MemoryPool, public sdk::DeviceTable {
 public:
  using sdk::MemoryPool::table;
  DeviceMemory(const Api& api, int device, Communicator& comm)
      : api_(api),
        device_(device),
        copying_(api, device),
        allocations_(std::make_shared<Allocations>(api, device, comm)) {}
  ~DeviceMemory() override { end(); }
  // Call before the communicator ends. Allocations stay valid as memory.
  void end() noexcept { allocations_->end(); }
  std::unique_ptr<sdk::Allocation> allocate(uint64_t bytes, uint32_t memory, int32_t device) override;
  std::unique_ptr<sdk::Allocation> register_memory(void* data, uint64_t bytes, uint32_t memory,
                                                   int32_t device) override;
  const bp_device_api* device_table() const { return DeviceTable::table(); }
  void copy(void* to, const void* from, uint64_t bytes) override;

 private:
  void require_here(uint32_t memory, int32_t device) const;

  const Api& api_;
  const int device_;
  const Stream copying_;
  const std::shared_ptr<Allocations> allocations_;
};

}  // namespace backplane::nccl
