// SPDX-License-Identifier: Apache-2.0
#include "device_mirror.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace backplane::conformance {
namespace {

constexpr int32_t kMostDevices = 64;
constexpr uint64_t kLeast = 512;  // bytes

uint64_t rounded(uint64_t bytes) { return std::bit_ceil(std::max(bytes, kLeast)); }

}  // namespace

MirrorMemory::MirrorMemory(const bp_process_group_api& api, void* self)
    : memory_(static_cast<const bp_memory_api*>(api.extension(self, BP_EXT_MEMORY))),
      copies_(static_cast<const bp_device_api*>(api.extension(self, BP_EXT_DEVICE))) {
  if (memory_ == nullptr || !BP_HAS(memory_, release) || memory_->allocate == nullptr || memory_->release == nullptr)
    return;
  if (copies_ == nullptr || !BP_HAS(copies_, copy) || copies_->copy == nullptr) return;
  release_ = memory_->release;
  // The agent's device is the first one whose memory it allocates.
  for (int32_t device = 0; device < kMostDevices && device_ < 0; ++device) {
    if (std::byte* const data = allocate(kLeast, device); data != nullptr) {
      device_ = device;
      give(data, kLeast);
    }
  }
}

MirrorMemory::~MirrorMemory() {
  for (bp_allocation* const allocation : allocations_) release_(allocation);
}

std::byte* MirrorMemory::allocate(uint64_t bytes, int32_t device) {
  bp_error err;
  bp_error_init(&err);
  bp_allocation* allocation = nullptr;
  void* data = nullptr;
  if (memory_->allocate(memory_->ctx, bytes, BP_CUDA, device, &allocation, &data, &err) != BP_OK) return nullptr;
  allocations_.push_back(allocation);
  return static_cast<std::byte*>(data);
}

std::byte* MirrorMemory::take(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = idle_.find(rounded(bytes));
  return found != idle_.end() ? idle_.extract(found).mapped() : allocate(rounded(bytes), device_);
}

void MirrorMemory::give(std::byte* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  idle_.emplace(rounded(bytes), data);
}

bool MirrorMemory::copy(void* to, const void* from, uint64_t bytes) const {
  bp_error err;
  bp_error_init(&err);
  return copies_->copy(copies_->ctx, to, from, bytes, &err) == BP_OK;
}

DeviceMirror::DeviceMirror(std::shared_ptr<MirrorMemory> memory, bp_op* op) : memory_(std::move(memory)) {
  const uint64_t width = bp_dtype_size(op->dtype);
  const auto bytes = [width](const bp_buffer& buffer) { return buffer.memory == BP_HOST ? buffer.count * width : 0; };
  auto* const in = static_cast<std::byte*>(op->input.data);
  auto* const out = static_cast<std::byte*>(op->output.data);
  output_bytes_ = bytes(op->output);
  output_ = out;
  const uint64_t in_bytes = bytes(op->input);
  const bool overlap = in_bytes > 0 && output_bytes_ > 0 && in < out + output_bytes_ && out < in + in_bytes;
  if (overlap) {
    std::byte* const begin = std::min(in, out);
    add(begin, static_cast<uint64_t>(std::max(in + in_bytes, out + output_bytes_) - begin));
  } else {
    add(in, in_bytes);
    add(out, output_bytes_);
  }
  if (!ok_) return;
  if (in_bytes > 0) move(&op->input);
  if (output_bytes_ > 0) move(&op->output);
  output_twin_ = static_cast<std::byte*>(op->output.data);
}

DeviceMirror::~DeviceMirror() {
  for (const Span& span : spans_) memory_->give(span.mirror, span.bytes);
}

void DeviceMirror::add(std::byte* begin, uint64_t bytes) {
  if (bytes == 0 || !ok_) return;
  std::byte* const mirror = memory_->take(bytes);
  if (mirror != nullptr) spans_.push_back({begin, bytes, mirror});
  ok_ = mirror != nullptr && memory_->copy(mirror, begin, bytes);
}

void DeviceMirror::move(bp_buffer* buffer) const {
  auto* const data = static_cast<std::byte*>(buffer->data);
  for (const Span& span : spans_) {
    if (data < span.begin || data >= span.begin + span.bytes) continue;
    *buffer = {span.mirror + (data - span.begin), buffer->count, BP_CUDA, memory_->device()};
    return;
  }
}

bool DeviceMirror::copy_back() const {
  return output_bytes_ == 0 || memory_->copy(output_, output_twin_, output_bytes_);
}

}  // namespace backplane::conformance
