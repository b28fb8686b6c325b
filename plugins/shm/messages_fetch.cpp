// SPDX-License-Identifier: Apache-2.0
//
// The part of Messages that copies announced messages in place.
#include <algorithm>

#include "messages.hpp"

namespace backplane::shm {

// Returns false if the sender named memory that is not its own.
bool Messages::find_exposed(int32_t rank, const Arrival& arrival, RemoteBuffer& remote) {
  if (is_in_process(arrival.exposure.location)) {
    if (cross_ != nullptr && arrival.size > kEagerLimit)
      remote = {address_of(arrival.exposure.location), arrival.exposure};
    return true;
  }
  if (arrival.exposure.location == 0 || pools_ == nullptr) return true;
  try {
    remote = {pools_->at(rank, arrival.exposure.location, arrival.size, 1), arrival.exposure};
  } catch (const sdk::Failure& why) {
    return why.status() != BP_INVALID;  // if it cannot be mapped, the message is sent
  }
  return true;
}

// Decides how the message arrives. Messages that overlap with others are not measured.
Messages::Incoming& Messages::start_incoming(const Message& announced, Operation& receive) {
  Peer& peer = at(announced.source);
  RemoteBuffer remote = announced.remote;
  int64_t began = 0;
  if (remote.data != nullptr && peer.in.has_revoked(remote.exposure)) remote = {};  // it cannot be read any more
  if (remote.data != nullptr && is_in_process(remote.exposure.location)) {
    const bool can_read = cross_->can_read(announced.source);
    if (!can_read && !has_logged_refusal_) log_refusal();
    if (!can_read || !tuner_.reads(announced.size)) remote = {};
    if (can_read && peer.incoming_by_id.empty()) {
      if (tuner_.is_open(announced.size)) {
        began = steady_ns();
      } else {
        tuner_.count_use(announced.size);  // counts from the next message on
      }
    }
  }
  Incoming incoming = {announced.tag, announced.size, 0, &receive, remote, began, {}, false, announced.size == 0};
  return peer.incoming_by_id.emplace(announced.id, std::move(incoming)).first->second;
}

void Messages::measure(const Incoming& incoming) {
  if (incoming.began == 0 || incoming.receive == nullptr) return;
  const bool was_read = incoming.remote.data != nullptr;
  const bool is_complete = tuner_.record(incoming.size, was_read, steady_ns() - incoming.began);
  if (is_complete && tuner_.decide(incoming.size, tuner_.best(incoming.size))) {
    notes_.push_back(std::string("messages from ").append(tuner_.text(incoming.size)));
  }
}

// Logged once.
void Messages::log_refusal() {
  std::string why = cross_->refusal();
  has_logged_refusal_ = !why.empty();
  if (has_logged_refusal_) notes_.push_back(std::move(why));
}

// Copies the next part of an exposed message, and replies at the end. If the part cannot be read, asks the sender to
// send the message.
void Messages::fetch(int32_t rank) {
  Peer& peer = at(rank);
  if (peer.to_fetch.empty()) return;
  const uint64_t id = peer.to_fetch.front();
  Incoming& incoming = peer.incoming_by_id.at(id);
  const bool has_failed = !fetch_part(rank, incoming);
  if (has_failed) incoming.fall_back();
  incoming.is_reply_pending = !has_failed && incoming.offset == incoming.size;
  if (has_failed || incoming.is_reply_pending) peer.to_fetch.pop_front();
  if (!peer.to_fetch.empty()) has_finished_ = true;  // there is more: sleeping threads must poll again
  if (has_failed || incoming.is_reply_pending)
    send_control(rank, {Kind::kReady, incoming.tag, id, has_failed ? 1U : 0U});
}

bool Messages::fetch_part(int32_t rank, Incoming& incoming) {
  const std::byte* const from = incoming.remote.data + incoming.offset;
  const uint64_t size = std::min(kMaxBatch, incoming.size - incoming.offset);
  if (!is_in_process(incoming.remote.exposure.location)) {
    append(incoming, from, size);
    return true;
  }
  std::byte* const to = room(incoming);
  if (to != nullptr && !cross_->read(rank, from, to, size)) return false;
  incoming.offset += size;
  return true;
}

}  // namespace backplane::shm
