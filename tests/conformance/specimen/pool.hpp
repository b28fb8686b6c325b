// SPDX-License-Identifier: Apache-2.0
//
// The specimen's "backplane.memory/1": ordinary memory, of which it keeps a list, for mutants to make use of.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "backplane/sdk/sdk.hpp"

namespace backplane::specimen {

// What is handed out now. Outlives the group, as the memory does.
class Live {
 public:
  void enter(std::byte* data, uint64_t size);
  void leave(std::byte* data);
  // Where the memory begins that holds this place; null: none does.
  std::byte* begin_of(const void* place) const;
  // Writes zeros over all of it.
  void wipe() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::byte*, uint64_t> sizes_;  // bytes, by begin
};

class Pool : public sdk::MemoryPool {
 public:
  std::unique_ptr<sdk::Allocation> allocate(uint64_t bytes, uint32_t memory, int32_t device) override;
  const Live& live() const { return *live_; }

 private:
  const std::shared_ptr<Live> live_ = std::make_shared<Live>();
};

}  // namespace backplane::specimen
