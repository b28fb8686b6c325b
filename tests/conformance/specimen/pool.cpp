// SPDX-License-Identifier: Apache-2.0
#include "pool.hpp"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

namespace backplane::specimen {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kMost = UINT64_C(1) << 40;  // bytes

class Block final : public sdk::Allocation {
 public:
  Block(std::shared_ptr<Live> live, uint64_t size)
      : live_(std::move(live)), size_(size), data_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size))) {
    if (data_ == nullptr) throw sdk::Failure(BP_RESOURCE, "there is no memory for " + std::to_string(size) + " bytes");
    live_->enter(data_, size);
  }
  ~Block() override {
    live_->leave(data_, size_);
    std::free(data_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data() const override { return data_; }

 private:
  const std::shared_ptr<Live> live_;
  const uint64_t size_;
  std::byte* const data_;
};

class Registration final : public sdk::Allocation {
 public:
  Registration(std::shared_ptr<Live> live, std::byte* data, uint64_t size)
      : live_(std::move(live)), size_(size), data_(data) {
    live_->enter(data_, size_);
  }
  ~Registration() override { live_->leave(data_, size_); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  void* data() const override { return data_; }

 private:
  const std::shared_ptr<Live> live_;
  const uint64_t size_;
  std::byte* const data_;
};

}  // namespace

void Live::enter(std::byte* data, uint64_t size) {
  const std::lock_guard lock(mutex_);
  sizes_.emplace(data, size);
}

void Live::leave(std::byte* data, uint64_t size) {
  const std::lock_guard lock(mutex_);
  auto [at, end] = sizes_.equal_range(data);
  while (at != end && at->second != size) ++at;
  if (at != end) sizes_.erase(at);
}

std::byte* Live::begin_of(const void* place) const {
  const std::lock_guard lock(mutex_);
  const auto* const wanted = static_cast<const std::byte*>(place);
  for (const auto& [begin, size] : sizes_) {
    if (wanted >= begin && wanted < begin + size) return begin;
  }
  return nullptr;
}

void Live::wipe() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, size] : sizes_) std::memset(begin, 0, size);
}

void Copies::copy(void* to, const void* from, uint64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::unique_ptr<sdk::Allocation> Pool::register_memory(void* data, uint64_t bytes, uint32_t memory, int32_t) {
  if (memory != BP_HOST) throw sdk::Failure(BP_UNSUPPORTED, "the specimen registers memory of the host only");
  return std::make_unique<Registration>(registered_, static_cast<std::byte*>(data), bytes);
}

std::unique_ptr<sdk::Allocation> Pool::allocate(uint64_t bytes, uint32_t memory, int32_t device) {
  if (memory != BP_HOST && (memory != BP_CUDA || device != 0)) {
    throw sdk::Failure(BP_UNSUPPORTED, "the specimen has memory of the host and of device 0 only");
  }
  if (bytes > kMost) {
    throw sdk::Failure(BP_RESOURCE, "the specimen hands out no " + std::to_string(bytes) + " bytes at a time");
  }
  return std::make_unique<Block>(live_, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace backplane::specimen
