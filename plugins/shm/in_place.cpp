// SPDX-License-Identifier: Apache-2.0
#include "in_place.hpp"

#include <cstring>

namespace backplane::shm {

uint64_t InPlace::location_of(const Operation& send) const {
  const uint64_t in_heap = pools_ == nullptr || send.size == 0 ? 0 : pools_->location_of(send.data, send.size);
  if (in_heap != 0 || cross_ == nullptr || !cross_->limits().message(send.size)) return in_heap;
  return location_in_process(send.data);
}

bool InPlace::find(int32_t rank, const Arrival& announcement, RemoteBuffer& remote) const {
  const Exposure& exposure = announcement.exposure;
  if (is_in_process(exposure.location)) {
    const bool may_read = cross_ != nullptr && announcement.size > kEagerLimit && cross_->can_read(rank);
    if (may_read) remote = {address_of(exposure.location), exposure};
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

bool InPlace::read(int32_t rank, const RemoteBuffer& remote, uint64_t offset, std::byte* to, uint64_t size) const {
  if (to == nullptr) return true;
  if (is_in_process(remote.exposure.location)) return cross_->read(rank, remote.data + offset, to, size);
  std::memcpy(to, remote.data + offset, size);
  return true;
}

}  // namespace backplane::shm
