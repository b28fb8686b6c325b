// SPDX-License-Identifier: Apache-2.0
//
// The part of Messages for what outlives a call without being an operation that somebody waits for: messages that were
// probed, and operations whose end is to be told.
#include <algorithm>

#include "messages.hpp"

namespace backplane::shm {

bp_message* Messages::probe(int32_t peer, uint64_t tag, bp_result& result) {
  waiting_.check();
  std::list<Held> fresh(1);  // before the message is taken: there may be no memory
  const Turn turn(*this);
  progress();
  std::optional<Message> message = matcher_.take_message(peer, tag);
  if (!message) {
    if (const sdk::Failure* const why = reason_to_fail(peer)) throw sdk::Failure(*why);
    return nullptr;
  }
  result.source = message->source;
  result.bytes = message->size;
  result.tag = message->tag;
  fresh.front().message = std::move(*message);
  held_.splice(held_.end(), fresh);
  return reinterpret_cast<bp_message*>(&held_.back());
}

Messages::Held Messages::take_held(const bp_message* message) {
  const auto found = std::find_if(held_.begin(), held_.end(), [message](const Held& held) {
    return reinterpret_cast<const bp_message*>(&held) == message;
  });
  Held taken = std::move(*found);
  held_.erase(found);
  return taken;
}

void Messages::lose_held(const std::function<bool(const Message&)>& which, const sdk::Failure& why) {
  for (Held& held : held_) {
    if (!held.lost && which(held.message)) held.lost.emplace(why);
  }
}

void Messages::receive_held(Operation& receive, const bp_message* message) {
  const Held held = take_held(message);
  receive.is_probed = true;
  receive.peer = held.message.source;
  receive.tag = held.message.tag;
  receive.order = ++next_order_;
  if (held.lost) return fail(receive, *held.lost);
  give(held.message, receive);
}

// After an abort its sender, here or elsewhere, is told nothing.
void Messages::drop(bp_message* message) noexcept {
  const Turn turn(*this);
  const Held held = take_held(message);
  if (held.lost || waiting_.aborted()) return;
  const Message& dropped = held.message;
  switch (dropped.form) {
    case Message::Form::kWhole:
      return at(dropped.source).in.give_credit(dropped.size);
    case Message::Form::kLocal:
      return finish(*dropped.sender);
    case Message::Form::kComing:
      return discard(at(dropped.source), dropped.id);
    case Message::Form::kAnnounced:
      sdk::guarded(nullptr, [this, &dropped] {  // without memory the sender waits until the group ends
        send_control(dropped.source, {Kind::kReady, dropped.tag, dropped.id, 0});
        return BP_OK;
      });
  }
}

// The helper gets the operation on, and sees to it if the group is aborted. That may be over, or be about to begin:
// both take the lock.
void Messages::on_end(Operation& operation, sdk::Notice notice) {
  const Turn turn(*this);
  if (!operation.is_pending()) return notice.give();
  if (!operation.is_async) {  // in a group of one
    helper_.begin();
    operation.is_async = true;
  }
  noticed_.emplace(&operation, notice);
  operation.is_noticed = true;
  if (waiting_.aborted()) end_noticed();
}

// The group was aborted.
void Messages::end_noticed() {
  try {
    waiting_.check();
  } catch (const sdk::Failure& why) {
    while (!noticed_.empty()) give_up(*noticed_.begin()->first, why);
  }
}

void Messages::settle_and_tell(Operation& operation, Operation::Status status) {
  const auto found = noticed_.find(&operation);
  sdk::Notice notice = found->second;
  noticed_.erase(found);
  operation.status.store(status);
  notice.give();
}

}  // namespace backplane::shm
