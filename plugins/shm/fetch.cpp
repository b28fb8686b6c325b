// SPDX-License-Identifier: Apache-2.0
//
// The part of Messages that copies announced messages from where they lie, with their sender's leave.
#include <algorithm>

#include "messages.hpp"

namespace backplane::shm {

// False: the sender names what is not in its memory.
bool Messages::find_lent(int32_t rank, const Arrival& arrival, Lent& lent) {
  if (is_in_process(arrival.loan.place)) {
    if (cross_ != nullptr && arrival.size > kEagerLimit) lent = {address_of(arrival.loan.place), arrival.loan};
    return true;
  }
  if (arrival.loan.place == 0 || pools_ == nullptr) return true;
  try {
    lent = {pools_->at(rank, arrival.loan.place, arrival.size, 1), arrival.loan};
  } catch (const sdk::Failure& why) {
    return why.status() != BP_INVALID;  // else it cannot be mapped, and is sent
  }
  return true;
}

// Decides how its bytes come. What shares its way with others tells nothing about how long that takes.
Messages::Incoming& Messages::expect(const Message& announced, Operation& receive) {
  Peer& peer = at(announced.source);
  Lent lent = announced.lent;
  int64_t began = 0;
  if (lent.data != nullptr && peer.in.has_revoked(lent.loan)) lent = {};  // it would be read in vain
  if (lent.data != nullptr && is_in_process(lent.loan.place)) {
    const bool can_read = cross_->reaches(announced.source);
    if (!can_read && !has_refused_) note_refusal();
    if (!can_read || !trial_.reads(announced.size)) lent = {};
    if (can_read && peer.coming.empty()) {
      if (trial_.is_open(announced.size)) {
        began = steady_ns();
      } else {
        trial_.trust(announced.size);  // from the next one on
      }
    }
  }
  Incoming incoming = {announced.tag, announced.size, 0, &receive, lent, began, {}, false, announced.size == 0};
  return peer.coming.emplace(announced.id, std::move(incoming)).first->second;
}

void Messages::measure(const Incoming& incoming) {
  if (incoming.began == 0 || incoming.receive == nullptr) return;
  const bool was_read = incoming.lent.data != nullptr;
  const bool is_over = trial_.took(incoming.size, was_read, steady_ns() - incoming.began);
  if (is_over && trial_.settle(incoming.size, trial_.best(incoming.size))) {
    notes_.push_back(std::string("messages from ").append(trial_.text(incoming.size)));
  }
}

// Once, when the kernel has been asked.
void Messages::note_refusal() {
  std::string why = cross_->refusal();
  has_refused_ = !why.empty();
  if (has_refused_) notes_.push_back(std::move(why));
}

// Copies the next part of what this rank lends. At the end the sender is told; if that part cannot be read it is asked
// to send the message after all.
void Messages::fetch(int32_t rank) {
  Peer& peer = at(rank);
  if (peer.lent.empty()) return;
  const uint64_t id = peer.lent.front();
  Incoming& incoming = peer.coming.at(id);
  const bool has_failed = !fetch_part(rank, incoming);
  if (has_failed) incoming.give_up();
  incoming.is_owed = !has_failed && incoming.offset == incoming.size;
  if (has_failed || incoming.is_owed) peer.lent.pop_front();
  if (!peer.lent.empty()) has_finished_ = true;  // there is more: who sleeps must look again
  if (has_failed || incoming.is_owed) send_control(rank, {Kind::kReady, incoming.tag, id, has_failed ? 1U : 0U});
}

bool Messages::fetch_part(int32_t rank, Incoming& incoming) {
  const std::byte* const from = incoming.lent.data + incoming.offset;
  const uint64_t size = std::min(kTurn, incoming.size - incoming.offset);
  if (!is_in_process(incoming.lent.loan.place)) {
    put_down(incoming, from, size);
    return true;
  }
  std::byte* const to = room(incoming);
  if (to != nullptr && !cross_->read(rank, from, to, size)) return false;
  incoming.offset += size;
  return true;
}

}  // namespace backplane::shm
