// SPDX-License-Identifier: Apache-2.0
//
// Device memory that NCCL knows: from ncclMemAlloc, registered with the group's communicator, where the library has
// these; else from cudaMalloc.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "backplane/sdk/memory.hpp"
#include "communicator.hpp"

namespace backplane::nccl {

// What outlives the group, because its memory may.
class Registrations {
 public:
  Registrations(const Api& api, Communicator& comm) : api_(api), comm_(&comm) {}
  void enter(void* data, uint64_t bytes);
  void leave(void* data) noexcept;
  void end() noexcept;

 private:
  const Api& api_;
  std::mutex mutex_;
  Communicator* comm_;
  std::map<void*, void*> handles_;
};

class DeviceMemory final : public sdk::MemoryPool {
 public:
  DeviceMemory(const Api& api, int device, Communicator& comm)
      : api_(api), device_(device), registrations_(std::make_shared<Registrations>(api, comm)) {}
  ~DeviceMemory() override { end(); }
  // Before the communicator ends: what was given out goes on as memory.
  void end() noexcept { registrations_->end(); }
  std::unique_ptr<sdk::Allocation> allocate(uint64_t bytes, uint32_t memory, int32_t device) override;

 private:
  const Api& api_;
  const int device_;
  const std::shared_ptr<Registrations> registrations_;
};

}  // namespace backplane::nccl
