// SPDX-License-Identifier: Apache-2.0
#include "sender.hpp"

#include <algorithm>

namespace backplane::shm {

void Sender::start(Operation& send, bool may_put) {
  out_.prepare(true);
  if (may_put && withdrawals_.empty() && queue_.empty() && put(send)) return;
  send.stage = Operation::Stage::kQueued;
  queue_.push_back(&send);
}

// The answer to an announcement costs ranks that do not spin two time slices, which take longer than a second copy.
bool Sender::may_be_eager(const Operation& send) const {
  return send.size <= kEagerLimit || (!spins_ && send.size <= kMaxEager && in_place_.location_of(send) == 0);
}

// Returns true if the message, or its announcement, is in the channel.
bool Sender::put(Operation& send) {
  if (!send.has_credit) send.has_credit = may_be_eager(send) && out_.take_credit(send.size);
  if (!send.has_credit) return announce(send);
  const bool done = send.size <= kHeadData ? out_.put_inline(send.tag, send.data, send.size)
                                           : out_.put_piece(Kind::kEager, send.tag, 0, send.data, send.size);
  if (done) completions_.finish(send);
  return done;
}

bool Sender::announce(Operation& send) {
  const uint64_t location = in_place_.location_of(send);
  if (!out_.put_control(Kind::kAnnounce, send.tag, last_id_ + 1, send.size, location)) return false;
  send.stage = Operation::Stage::kAnnounced;
  send.id = ++last_id_;
  announced_.emplace(send.id, Announced{&send, 0, location != 0});
  return true;
}

void Sender::push() {
  while (!withdrawals_.empty() && out_.put_control(Kind::kWithdraw, 0, withdrawals_.front(), 0)) {
    withdrawals_.pop_front();
  }
  while (withdrawals_.empty() && !queue_.empty() && put(*queue_.front())) queue_.pop_front();
  push_pieces();
}

void Sender::push_pieces() {
  while (!ready_ids_.empty()) {
    Announced& announced = announced_.at(ready_ids_.front());
    Operation& send = *announced.send;
    const uint64_t size = std::min(kPiece, send.size - announced.offset);
    if (!out_.put_piece(Kind::kData, send.tag, send.id, send.data + announced.offset, size)) return;
    announced.offset += size;
    if (announced.offset < send.size) continue;
    announced_.erase(ready_ids_.front());
    ready_ids_.pop_front();
    completions_.finish(send);
  }
}

void Sender::on_ready(uint64_t id, bool is_needed) {
  const auto found = announced_.find(id);
  if (found == announced_.end()) return;  // withdrawn meanwhile
  Operation& send = *found->second.send;
  if (!is_needed) {
    std::erase(ready_ids_, id);
    announced_.erase(found);
    completions_.finish(send);
  } else if (send.size > 0 && std::find(ready_ids_.begin(), ready_ids_.end(), id) == ready_ids_.end()) {
    ready_ids_.push_back(id);
  }
}

void Sender::withdraw(const Operation& send) {
  if (send.stage == Operation::Stage::kQueued) {
    std::erase(queue_, &send);
    if (send.has_credit) out_.return_credit(send.size);
  } else if (send.stage == Operation::Stage::kAnnounced) {
    if (announced_.at(send.id).is_exposed) out_.revoke();
    announced_.erase(send.id);
    std::erase(ready_ids_, send.id);
    withdrawals_.push_back(send.id);
  }
}

void Sender::fail_all(const sdk::Failure& why) {
  for (Operation* const send : queue_) completions_.fail(*send, why);
  for (const auto& [id, announced] : announced_) {
    if (announced.is_exposed) out_.revoke();
    completions_.fail(*announced.send, why);
  }
  withdrawals_.clear();
  queue_.clear();
  announced_.clear();
  ready_ids_.clear();
}

}  // namespace backplane::shm
