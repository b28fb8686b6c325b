// SPDX-License-Identifier: Apache-2.0
//
// The part of Protocol for messages that were probed. One that was eager is here; any other still waits at its sender.
#include <algorithm>

#include "protocol.hpp"

namespace backplane::zmq_plugin {

void Protocol::Held::lose(const sdk::Failure& why) {
  lost.emplace(why);
  arrival.local_send = nullptr;
  arrival.frame = zmq::message_t();
}

std::list<Protocol::Held>::iterator Protocol::find_held(const bp_message* message) {
  return std::find_if(held_.begin(), held_.end(),
                      [message](const Held& held) { return reinterpret_cast<const bp_message*>(&held) == message; });
}

// False: there is no such message.
bool Protocol::lose_held(const std::function<bool(const Arrival&)>& which, const sdk::Failure& why) {
  bool any = false;
  for (Held& held : held_) {
    if (held.lost || !which(held.arrival)) continue;
    held.lose(why);
    any = true;
  }
  return any;
}

bp_message* Protocol::probe(int32_t peer, uint64_t tag, bp_result& result) {
  if (aborted_) throw sdk::Failure(*aborted_);
  std::list<Held> fresh(1);  // before the message is taken: there may be no memory
  std::optional<Arrival> arrival = matcher_.take_arrival(peer, tag);
  if (!arrival) {
    if (peer == BP_ANY_SOURCE && nobody_left_) throw sdk::Failure(*nobody_left_);
    if (peer != BP_ANY_SOURCE && peer != rank_) usable(peer);  // whose connection tells of its death
    return nullptr;
  }
  result.source = arrival->source;
  result.bytes = arrival->size;
  result.tag = arrival->tag;
  fresh.front().arrival = std::move(*arrival);
  held_.splice(held_.end(), fresh);
  return reinterpret_cast<bp_message*>(&held_.back());
}

OperationPtr Protocol::receive_probed(const bp_op& op) {
  OperationPtr receive;
  try {
    receive = start(op, false);
  } catch (...) {
    drop(op.message);
    throw;
  }
  const auto held = find_held(op.message);
  Held taken = std::move(*held);
  held_.erase(held);
  if (taken.lost) throw sdk::Failure(*taken.lost);
  receive->is_probed = true;
  receive->any_source = false;
  receive->peer = taken.arrival.source;
  receive->tag = taken.arrival.tag;
  settle(receive, std::move(taken.arrival));
  return receive;
}

void Protocol::drop(const bp_message* message) {
  const auto held = find_held(message);
  const Held taken = std::move(*held);
  held_.erase(held);
  if (aborted_ || taken.lost) return;
  const Arrival& arrival = taken.arrival;
  if (arrival.local_send) {
    arrival.local_send->finish();
  } else if (arrival.eager) {
    repay(arrival.source, arrival.size);
  } else {
    post(arrival.source, compose(usable(arrival.source), {.kind = Kind::kReady, .id = arrival.remote_id}));
  }
}

}  // namespace backplane::zmq_plugin
