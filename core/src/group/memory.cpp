// SPDX-License-Identifier: Apache-2.0
#include "group/memory.hpp"

#include <cstdlib>

#include "error.hpp"
#include "group/pass.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kAlignment = 64;                     // bytes
constexpr uint64_t kMaxAllocation = UINT64_C(1) << 48;  // more than any process has

}  // namespace

Memory::Memory(const bp_memory_api& table, uint64_t bytes, uint32_t memory, int32_t device) : release_(table.release) {
  bp_error err;
  bp_error_init(&err);
  const int32_t status = table.allocate(table.ctx, bytes, memory, device, &allocation_, &data_, &err);
  if (status != BP_OK) throw_report(status, err, "");
  if (allocation_ == nullptr || data_ == nullptr) fail(BP_INTERNAL, "a backend's allocate said BP_OK and gave nothing");
}

Memory::Memory(uint64_t bytes) {
  if (bytes == 0) return;
  if (bytes < kMaxAllocation)
    data_ = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (data_ == nullptr) fail(BP_RESOURCE, "there is no memory for {} bytes", bytes);
}

Memory::Memory(const bp_memory_api* table, void* data, uint64_t bytes, uint32_t memory, int32_t device)
    : data_(data), is_programs_(true) {
  if (table == nullptr || !BP_HAS(table, register_memory) || table->register_memory == nullptr) return;
  bp_error err;
  bp_error_init(&err);
  const int32_t status = table->register_memory(table->ctx, data, bytes, memory, device, &allocation_, &err);
  if (status == BP_UNSUPPORTED || status == BP_RESOURCE) return;  // ordinary memory does, too
  if (status != BP_OK) throw_report(status, err, "");
  if (allocation_ == nullptr) fail(BP_INTERNAL, "a backend's register_memory said BP_OK and gave nothing");
  release_ = table->release;
}

Memory::~Memory() {
  if (allocation_ != nullptr) {
    release_(allocation_);
  } else if (!is_programs_) {
    std::free(data_);
  }
}

std::unique_ptr<Memory> Group::allocate(uint64_t bytes, uint32_t memory, int32_t device) {
  const Pass pass(*this);
  if (memory >= BP_MEMORY_COUNT) fail(BP_INVALID, "allocate: there is no memory of kind {}", memory);
  const Agent& agent = agent_of(memory);
  const bp_memory_api* const table = bytes == 0 ? nullptr : agent.memory();
  if (table != nullptr) {
    try {
      return std::make_unique<Memory>(*table, bytes, memory, device);
    } catch (const Error& e) {
      if (e.status() != BP_UNSUPPORTED || memory != BP_HOST) throw;
    }
  }
  if (memory != BP_HOST)
    fail(BP_UNSUPPORTED, "backend {} has no cuda memory to give; allocate it by cudaMalloc", agent.id());
  return std::make_unique<Memory>(bytes);
}

std::unique_ptr<Memory> Group::register_memory(void* data, uint64_t bytes, uint32_t memory, int32_t device) {
  const Pass pass(*this);
  if (memory >= BP_MEMORY_COUNT) fail(BP_INVALID, "register: there is no memory of kind {}", memory);
  if (bytes >= kMaxAllocation) fail(BP_INVALID, "register: {} bytes are more than any process has", bytes);
  const Agent& agent = agent_of(memory);
  return std::make_unique<Memory>(bytes == 0 ? nullptr : agent.memory(), data, bytes, memory, device);
}

}  // namespace backplane::core
