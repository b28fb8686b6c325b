// SPDX-License-Identifier: Apache-2.0
#include "receiving.hpp"

#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "transport.hpp"

namespace backplane::gloo {
namespace {

constexpr const char* kNoMemoryForCancelled = "this rank has no memory to keep the message of a cancelled receive";

}  // namespace

bool Receiving::withdraw(const Buffer& buffer, uint64_t slot) noexcept {
  const std::lock_guard lock(pair_.m_);
  if (pair_.state_ == GlooPair::CLOSED) return false;
  try {
    if (!arrival_.is_into(buffer)) return queue_.orphan(buffer, slot);
    arrival_.leave_buffer(buffer, slot);
  } catch (const std::exception&) {
    link_.end(kNoMemoryForCancelled);
  }
  return true;
}

Receiving::Adopted Receiving::adopt(Buffer& buffer, uint64_t slot) {
  const std::lock_guard lock(pair_.m_);
  Orphans& orphans = queue_.orphans();
  orphans.destroy_retired();
  std::unique_ptr<Buffer> orphan = orphans.take_oldest(slot);
  if (!orphan) return {};
  if (queue_.replace(*orphan, buffer, slot)) return {true, nullptr};
  if (arrival_.is_kept_for(*orphan) && arrival_.is_longer_than(buffer.size)) {  // fails without waiting for the rest
    arrival_.refuse_kept(slot, buffer);
    orphans.retire(std::move(orphan));
    return {true, nullptr};
  }
  return {false, std::move(orphan)};
}

// Gives the message of an orphan to a receive that waits. Returns false if there is none.
bool Receiving::hand_on(Buffer& orphan, uint64_t slot) {
  if (!orphan.has_received()) return arrival_.is_kept_for(orphan) && arrival_.redirect_kept(slot);
  if (const std::optional<ReceiveQueue::Posted> taken = queue_.take_waiting(slot)) {
    if (const BufferRef receiver(std::get<0>(*taken)); receiver) {
      receiver->deliver(orphan.kept(), orphan.length(), pair_.rank_);
      return true;
    }
  }
  // A receive from any source may have come meanwhile.
  return owner_.offer_to_any_source(slot, pair_.rank_, orphan.kept(), orphan.length());
}

void Receiving::give_back(std::unique_ptr<Buffer> orphan, uint64_t slot) noexcept {
  const std::lock_guard lock(pair_.m_);
  try {
    if (hand_on(*orphan, slot)) return;
    queue_.orphans().add_oldest(slot, std::move(orphan));
  } catch (const std::exception&) {
    link_.end(kNoMemoryForCancelled);
  }
}

bool Receiving::has_filled_orphan(uint64_t slot) {
  const std::lock_guard lock(pair_.m_);
  return queue_.orphans().has_filled(slot);
}

std::unique_ptr<Buffer> Receiving::take_filled_orphan(uint64_t slot) {
  const std::lock_guard lock(pair_.m_);
  return queue_.orphans().has_filled(slot) ? queue_.orphans().take_oldest(slot) : nullptr;
}

}  // namespace backplane::gloo
