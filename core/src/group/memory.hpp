// SPDX-License-Identifier: Apache-2.0
//
// Memory for the buffers of operations: allocated by a backend, ordinary, or the program's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backplane/abi/ext/memory.h"

namespace backplane::core {

class Memory {
 public:
  static constexpr uint64_t kMaxBytes = UINT64_C(1) << 48;  // exclusive; more than any process has

  // Allocated by a backend. Throws core::Error: BP_UNSUPPORTED if it has none of this kind.
  Memory(const bp_memory_api& table, uint64_t bytes, uint32_t memory, int32_t device);
  // Ordinary host memory. Throws core::Error (BP_RESOURCE).
  explicit Memory(uint64_t bytes);
  // The program's, registered with a backend unless `table` is NULL. Throws core::Error.
  Memory(const bp_memory_api* table, void* data, uint64_t bytes, uint32_t memory, int32_t device);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }  // NULL: no bytes
  bool native() const { return allocation_ != nullptr; }

 private:
  void (*release_)(bp_allocation*) = nullptr;  // stays valid: plugins are never unloaded
  bp_allocation* allocation_ = nullptr;        // NULL: not the backend's
  void* data_ = nullptr;
  bool is_borrowed_ = false;
};

}  // namespace backplane::core
