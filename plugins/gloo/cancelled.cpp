// SPDX-License-Identifier: Apache-2.0
#include "cancelled.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace backplane::gloo {
namespace {

constexpr uint64_t kMaxDetached = uint64_t{1} << 30;

std::unique_ptr<Buffer> make_buffer(const std::shared_ptr<const Health>& health, void* data, size_t size) {
  return std::make_unique<Buffer>(nullptr, health, data, size, Buffer::Lengths::kUpToSize, Clock::time_point::max());
}

}  // namespace

std::unique_ptr<Buffer> Orphans::make() const { return make_buffer(health_, nullptr, 0); }

bool Orphans::contains(const ::gloo::transport::tcp::UnboundBuffer* buffer, uint64_t slot) const {
  const auto found = by_slot_.find(slot);
  return found != by_slot_.end() && std::any_of(found->second.begin(), found->second.end(),
                                                [buffer](const auto& orphan) { return orphan.get() == buffer; });
}

std::unique_ptr<Buffer> Orphans::take_oldest(uint64_t slot) {
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return nullptr;
  std::unique_ptr<Buffer> orphan = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) by_slot_.erase(found);
  return orphan;
}

bool Orphans::has_filled(uint64_t slot) const {
  const auto found = by_slot_.find(slot);
  return found != by_slot_.end() && found->second.front()->has_received();
}

void Orphans::retire(uint64_t slot, const Buffer& orphan) {
  auto& orphans = by_slot_.at(slot);
  const auto found =
      std::find_if(orphans.begin(), orphans.end(), [&orphan](const auto& each) { return each.get() == &orphan; });
  retire(std::move(*found));
  orphans.erase(found);
  if (orphans.empty()) by_slot_.erase(slot);
}

// A copy in a destructor has no deadline, and lazily allocated memory may not exist.
WeakBuffer DetachedSends::copy(const ::gloo::transport::tcp::UnboundBuffer& buffer, size_t offset, size_t bytes) {
  if (bytes > kMaxDetached) throw std::bad_alloc();
  Copy copy;
  copy.bytes.reset(new char[bytes]);
  if (bytes > 0) std::memcpy(copy.bytes.get(), static_cast<const char*>(buffer.ptr) + offset, bytes);
  copy.buffer = make_buffer(health_, copy.bytes.get(), bytes);
  copies_.push_back(std::move(copy));
  return copies_.back().buffer->weak();
}

void DetachedSends::destroy_sent() {
  copies_.remove_if([](const Copy& copy) { return copy.buffer->has_sent(); });
}

}  // namespace backplane::gloo
