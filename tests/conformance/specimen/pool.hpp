// SPDX-License-Identifier: Apache-2.0
//
// The specimen's "backplane.memory/1": ordinary memory, of which it keeps a list, for mutants to make use of.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "backplane/sdk/device.hpp"
#include "backplane/sdk/sdk.hpp"

namespace backplane::specimen {

// The memory that is allocated now. Outlives the group.
class Live {
 public:
  void enter(std::byte* data, uint64_t size);
  void leave(std::byte* data, uint64_t size);
  // The beginning of the memory that contains this address; null if none does.
  std::byte* begin_of(const void* place) const;
  // Writes zeros over all of it.
  void wipe() const;

 private:
  mutable std::mutex mutex_;
  std::multimap<std::byte*, uint64_t> sizes_;  // bytes, by begin
};

// "Memory of the device", number 0, is memory of the host.
class Pool : public sdk::MemoryPool {
 public:
  std::unique_ptr<sdk::Allocation> allocate(uint64_t bytes, uint32_t memory, int32_t device) override;
  // Kept in a list of its own.
  std::unique_ptr<sdk::Allocation> register_memory(void* data, uint64_t bytes, uint32_t memory,
                                                   int32_t device) override;
  const Live& live() const { return *live_; }
  Live& registered() { return *registered_; }

 private:
  const std::shared_ptr<Live> live_ = std::make_shared<Live>();
  const std::shared_ptr<Live> registered_ = std::make_shared<Live>();
};

// Its "backplane.device/1", but for what concerns operations.
class Copies : public sdk::DeviceTable {
 public:
  void copy(void* to, const void* from, uint64_t bytes) override;
};

}  // namespace backplane::specimen
