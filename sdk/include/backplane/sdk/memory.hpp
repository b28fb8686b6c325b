// SPDX-License-Identifier: Apache-2.0
//
// "backplane.memory/1" with C++ types: memory that a group allocates. Its operations access buffers in that memory
// directly.
//
//     const void* extension(std::string_view id) override { return id == BP_EXT_MEMORY ? pool_.table() : nullptr; }
//
// where pool_ is a MemoryPool that the group owns.
#pragma once

#include <memory>

#include "failure.hpp"

namespace backplane::sdk {

// Allocated memory. Its destructor returns it, on any thread, also after the group was destroyed.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual void* data() const = 0;
};

class MemoryPool {
 public:
  MemoryPool() : table_{sizeof(bp_memory_api), 0, this, allocate, release, register_memory} {}
  virtual ~MemoryPool() = default;
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // Allocates at least 1 byte by the rules of abi/ext/memory.h. Throws BP_UNSUPPORTED (the core then uses ordinary
  // memory) or BP_RESOURCE. Any thread.
  virtual std::unique_ptr<Allocation> allocate(uint64_t bytes, uint32_t memory, int32_t device) = 0;

  // Registers the program's own memory for operations; the returned object's destructor deregisters it. Throws like
  // the function above.
  virtual std::unique_ptr<Allocation> register_memory(void* /*data*/, uint64_t /*bytes*/, uint32_t /*memory*/,
                                                      int32_t /*device*/) {
    throw Failure(BP_UNSUPPORTED, "this backend cannot register the program's memory");
  }

  // The value for the group's extension(). Valid as long as this object.
  const bp_memory_api* table() const { return &table_; }

 private:
  static int32_t allocate(void* ctx, uint64_t bytes, uint32_t memory, int32_t device, bp_allocation** allocation,
                          void** data, bp_error* err) noexcept {
    return guarded(err, [&] {
      std::unique_ptr<Allocation> made = static_cast<MemoryPool*>(ctx)->allocate(bytes, memory, device);
      *data = made->data();
      *allocation = reinterpret_cast<bp_allocation*>(made.release());
      return BP_OK;
    });
  }
  static int32_t register_memory(void* ctx, void* data, uint64_t bytes, uint32_t memory, int32_t device,
                                 bp_allocation** allocation, bp_error* err) noexcept {
    return guarded(err, [&] {
      *allocation = reinterpret_cast<bp_allocation*>(
          static_cast<MemoryPool*>(ctx)->register_memory(data, bytes, memory, device).release());
      return BP_OK;
    });
  }
  static void release(bp_allocation* allocation) noexcept { delete reinterpret_cast<Allocation*>(allocation); }

  const bp_memory_api table_;
};

}  // namespace backplane::sdk
