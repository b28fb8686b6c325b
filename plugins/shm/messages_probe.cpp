// SPDX-License-Identifier: Apache-2.0
//
// The part of Messages for probed messages and completion notices.
#include <algorithm>

#include "messages.hpp"

namespace backplane::shm {

bp_message* Messages::probe(int32_t peer, uint64_t tag, bp_result& result) {
  waiter_.check();
  std::list<Probed> fresh(1);  // allocated before the message is taken
  const Lock lock(*this);
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
  probed_.splice(probed_.end(), fresh);
  return reinterpret_cast<bp_message*>(&probed_.back());
}

Messages::Probed Messages::take_probed(const bp_message* message) {
  const auto found = std::find_if(probed_.begin(), probed_.end(), [message](const Probed& probed) {
    return reinterpret_cast<const bp_message*>(&probed) == message;
  });
  Probed taken = std::move(*found);
  probed_.erase(found);
  return taken;
}

void Messages::fail_probed(const std::function<bool(const Message&)>& which, const sdk::Failure& why) {
  for (Probed& probed : probed_) {
    if (!probed.lost && which(probed.message)) probed.lost.emplace(why);
  }
}

void Messages::receive_probed(Operation& receive, const bp_message* message) {
  const Probed probed = take_probed(message);
  receive.is_probed = true;
  receive.peer = probed.message.source;
  receive.tag = probed.message.tag;
  receive.order = ++next_order_;
  if (probed.lost) return fail(receive, *probed.lost);
  assign(probed.message, receive);
}

// After an abort the sender is not notified.
void Messages::drop(bp_message* message) noexcept {
  const Lock lock(*this);
  const Probed probed = take_probed(message);
  if (probed.lost || waiter_.aborted()) return;
  const Message& dropped = probed.message;
  switch (dropped.state) {
    case Message::State::kComplete:
      return at(dropped.source).in.return_credits(dropped.size);
    case Message::State::kLocal:
      return finish(*dropped.sender);
    case Message::State::kIncoming:
      return discard(at(dropped.source), dropped.id);
    case Message::State::kAnnounced:
      sdk::guarded(nullptr, [this, &dropped] {  // out of memory: the sender waits until the group ends
        send_control(dropped.source, {Kind::kReady, dropped.tag, dropped.id, 0});
        return BP_OK;
      });
  }
}

// The progress thread completes the operation, even if the group was aborted before or is aborted later: both hold the
// lock.
void Messages::on_end(Operation& operation, sdk::Notice notice) {
  const Lock lock(*this);
  if (!operation.is_pending()) return notice.give();
  if (!operation.is_async) {  // in a group of one
    progress_thread_.operation_started();
    operation.is_async = true;
  }
  notices_.emplace(&operation, notice);
  operation.has_notice = true;
  if (waiter_.aborted()) fail_all_with_notice();
}

// Call after an abort.
void Messages::fail_all_with_notice() {
  try {
    waiter_.check();
  } catch (const sdk::Failure& why) {
    while (!notices_.empty()) give_up(*notices_.begin()->first, why);
  }
}

void Messages::complete_with_notice(Operation& operation, Operation::Status status) {
  const auto found = notices_.find(&operation);
  sdk::Notice notice = found->second;
  notices_.erase(found);
  operation.status.store(status);
  notice.give();
}

}  // namespace backplane::shm
