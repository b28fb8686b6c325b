// SPDX-License-Identifier: Apache-2.0
#include "in_place.hpp"

#include <cstring>

#include "progress.hpp"

namespace backplane::shm {

uint64_t InPlace::location_of(const Operation& send) const {
  const uint64_t in_heap = pools_ == nullptr || send.size == 0 ? 0 : pools_->location_of(send.data, send.size);
  if (in_heap != 0 || cross_ == nullptr || send.size <= kEagerLimit) return in_heap;
  return location_in_process(send.data);
}

bool InPlace::is_preferred(const Operation& send) const {
  if (cross_ != nullptr && cross_->use() == Cma::kOn) return true;
  return pools_ != nullptr && pools_->location_of(send.data, send.size) != 0;
}

bool InPlace::find(int32_t rank, const Arrival& announcement, RemoteBuffer& remote) const {
  const Exposure& exposure = announcement.exposure;
  if (is_in_process(exposure.location)) {
    if (cross_ != nullptr && announcement.size > kEagerLimit) remote = {address_of(exposure.location), exposure};
    return true;
  }
  if (exposure.location == 0 || pools_ == nullptr) return true;
  try {
    remote = {pools_->at(rank, exposure.location, announcement.size, 1), exposure};
  } catch (const sdk::Failure& why) {
    return why.status() != BP_INVALID;  // if it cannot be mapped, the message is sent
  }
  return true;
}

int64_t InPlace::decide(int32_t rank, uint64_t size, bool overlaps, RemoteBuffer& remote) {
  if (remote.data == nullptr || !is_in_process(remote.exposure.location)) return 0;
  const bool can_read = cross_->can_read(rank);
  if (!can_read && !has_noted_refusal_) note_refusal();
  if (!can_read || !tuner_.reads(size)) remote = {};
  if (!can_read || overlaps) return 0;
  if (tuner_.is_open(size)) return steady_ns();
  tuner_.count_use(size);  // counts from the next message on
  return 0;
}

bool InPlace::read(int32_t rank, const RemoteBuffer& remote, uint64_t offset, std::byte* to, uint64_t size) const {
  if (to == nullptr) return true;
  if (is_in_process(remote.exposure.location)) return cross_->read(rank, remote.data + offset, to, size);
  std::memcpy(to, remote.data + offset, size);
  return true;
}

void InPlace::record(uint64_t size, bool was_read, int64_t began) {
  const bool is_complete = tuner_.record(size, was_read, steady_ns() - began);
  if (is_complete && tuner_.decide(size, tuner_.best(size))) notes_.push_back("messages from " + tuner_.text(size));
}

void InPlace::note_refusal() {
  std::string why = cross_->refusal();
  has_noted_refusal_ = !why.empty();
  if (has_noted_refusal_) notes_.push_back(std::move(why));
}

}  // namespace backplane::shm
