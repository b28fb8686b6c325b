// SPDX-License-Identifier: Apache-2.0
#include "group/memory.hpp"

#include <cstdlib>

#include "error.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kAlignment = 64;  // bytes

}  // namespace

Memory::Memory(const bp_memory_api& table, uint64_t bytes, uint32_t memory, int32_t device) : release_(table.release) {
  bp_error err;
  bp_error_init(&err);
  const int32_t status = table.allocate(table.ctx, bytes, memory, device, &allocation_, &data_, &err);
  if (status != BP_OK) throw_report(status, err, "");
  if (allocation_ == nullptr || data_ == nullptr)
    fail(BP_INTERNAL, "a backend's allocate returned BP_OK and set no allocation");
}

Memory::Memory(uint64_t bytes) {
  if (bytes == 0) return;
  if (bytes < kMaxBytes) data_ = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (data_ == nullptr) fail(BP_RESOURCE, "cannot allocate {} bytes", bytes);
}

Memory::Memory(const bp_memory_api* table, void* data, uint64_t bytes, uint32_t memory, int32_t device)
    : data_(data), is_borrowed_(true) {
  if (table == nullptr || !BP_HAS(table, register_memory) || table->register_memory == nullptr) return;
  bp_error err;
  bp_error_init(&err);
  const int32_t status = table->register_memory(table->ctx, data, bytes, memory, device, &allocation_, &err);
  if (status == BP_UNSUPPORTED || status == BP_RESOURCE) return;  // usable without registration
  if (status != BP_OK) throw_report(status, err, "");
  if (allocation_ == nullptr) fail(BP_INTERNAL, "a backend's register_memory returned BP_OK and set no allocation");
  release_ = table->release;
}

Memory::~Memory() {
  if (allocation_ != nullptr) {
    release_(allocation_);
  } else if (!is_borrowed_) {
    std::free(data_);
  }
}

}  // namespace backplane::core
