// SPDX-License-Identifier: Apache-2.0
#include "receiver.hpp"

#include <algorithm>
#include <cstring>

namespace backplane::shm {

Message Receiver::make_message(Message::State state, uint64_t tag, uint64_t size, uint64_t id) const {
  Message message;
  message.state = state;
  message.source = peer_;
  message.tag = tag;
  message.size = size;
  message.id = id;
  return message;
}

std::optional<Message> Receiver::announced(const Arrival& arrival) {
  if (arrival.id <= last_id_) return std::nullopt;
  last_id_ = arrival.id;
  Message message = make_message(Message::State::kAnnounced, arrival.tag, arrival.size, arrival.id);
  if (!in_place_.find(peer_, arrival, message.remote)) return std::nullopt;
  return message;
}

void Receiver::assign(Operation& receive, uint64_t id) const {
  receive.stage = Operation::Stage::kIncoming;
  receive.source = peer_;
  receive.id = id;
}

void Receiver::accept(const Message& announced, Operation& receive) {
  const uint64_t id = announced.id;
  if (!completions_.fits(receive, peer_, announced.tag, announced.size)) return decline(id);
  assign(receive, id);
  RemoteBuffer remote = announced.remote;
  if (remote.data != nullptr && in_.has_revoked(remote.exposure)) remote = {};  // it cannot be read any more
  const bool is_empty = announced.size == 0;
  incoming_.emplace(id, Incoming{announced.tag, announced.size, 0, &receive, remote, {}, false, is_empty});
  if (is_empty || remote.data == nullptr) return replies_.push_back({id, !is_empty});
  to_fetch_.push_back(id);
  completions_.request_wake();  // sleeping threads must poll: the receive may belong to a program that does not wait
}

bool Receiver::on_data(const Arrival& arrival) {
  const auto found = incoming_.find(arrival.id);
  if (found == incoming_.end()) return false;
  Incoming& incoming = found->second;
  if (incoming.remote.data != nullptr || arrival.length > incoming.size - incoming.offset) return false;
  std::byte* const to = incoming.room();
  if (to != nullptr) std::memcpy(to, arrival.data, arrival.length);
  incoming.offset += arrival.length;
  if (!incoming.has_joined()) return true;
  complete(arrival.id);
  return true;
}

// If the part cannot be read, asks the peer to send the message.
bool Receiver::fetch_part() {
  const uint64_t id = to_fetch_.front();
  Incoming& incoming = incoming_.at(id);
  const uint64_t size = std::min(kMaxBatch, incoming.size - incoming.offset);
  const bool has_failed = !in_place_.read(peer_, incoming.remote, incoming.offset, incoming.room(), size);
  incoming.offset += size;
  if (has_failed) incoming.fall_back();
  incoming.is_reply_pending = !has_failed && incoming.offset == incoming.size;
  const bool is_over = has_failed || incoming.is_reply_pending;
  if (is_over) to_fetch_.pop_front();
  if (!to_fetch_.empty()) completions_.request_wake();  // there is more: sleeping threads must poll again
  if (is_over) replies_.push_back({id, has_failed});
  return is_over;
}

// If the peer has revoked an exposure while the message was read, it is asked to send the message. It does so unless it
// has withdrawn the message.
bool Receiver::put_replies(Outbox& out) {
  if (!replies_.empty()) out.prepare(false);
  for (; !replies_.empty(); replies_.pop_front()) {
    const auto& [id, is_needed] = replies_.front();
    const auto found = incoming_.find(id);
    Incoming* const fetched = found != incoming_.end() && found->second.is_reply_pending ? &found->second : nullptr;
    const bool is_void =
        fetched != nullptr && fetched->remote.data != nullptr && in_.has_revoked(fetched->remote.exposure);
    if (!out.put_control(Kind::kReady, 0, id, is_needed || is_void ? 1 : 0)) return false;
    if (fetched == nullptr) continue;
    fetched->is_reply_pending = false;
    if (is_void) {
      fetched->fall_back();
      continue;
    }
    fetched->remote = {};
    complete(id);
  }
  return true;
}

// The message has arrived completely.
void Receiver::complete(uint64_t id) {
  const auto found = incoming_.find(id);
  Operation* const receive = found->second.receive;
  if (receive != nullptr) completions_.finish(*receive);
  if (receive != nullptr || found->second.is_discarded) incoming_.erase(found);
}

Message Receiver::stash(const Operation& receive) {
  Incoming& incoming = incoming_.at(receive.id);
  Message message = make_message(Message::State::kIncoming, incoming.tag, incoming.size, receive.id);
  incoming.stash = std::make_unique_for_overwrite<std::byte[]>(incoming.size);
  if (incoming.offset > 0) std::memcpy(incoming.stash.get(), receive.data, incoming.offset);
  incoming.receive = nullptr;
  return message;
}

void Receiver::resume(uint64_t id, Operation& receive) {
  const auto found = incoming_.find(id);
  Incoming& incoming = found->second;
  if (!completions_.fits(receive, peer_, incoming.tag, incoming.size)) return discard(id);
  if (incoming.offset > 0) std::memcpy(receive.data, incoming.stash.get(), incoming.offset);
  incoming.stash.reset();
  if (incoming.has_joined()) {
    incoming_.erase(found);
    return completions_.finish(receive);
  }
  assign(receive, id);
  incoming.receive = &receive;
}

void Receiver::discard(uint64_t id) {
  const auto found = incoming_.find(id);
  Incoming& incoming = found->second;
  incoming.receive = nullptr;
  incoming.stash.reset();
  incoming.is_discarded = true;
  if (incoming.has_joined()) incoming_.erase(found);
}

Operation* Receiver::withdraw(uint64_t id) {
  const auto found = incoming_.find(id);
  if (found == incoming_.end()) return nullptr;
  Operation* const receive = found->second.receive;
  std::erase(to_fetch_, id);
  incoming_.erase(found);
  return receive;
}

void Receiver::fail_all(const sdk::Failure& why) {
  for (const auto& [id, incoming] : incoming_) {
    if (incoming.receive != nullptr) completions_.fail(*incoming.receive, why);
  }
  std::erase_if(incoming_,
                [](const auto& each) { return each.second.receive != nullptr || !each.second.has_joined(); });
  to_fetch_.clear();
  replies_.clear();
}

}  // namespace backplane::shm
