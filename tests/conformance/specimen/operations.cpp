// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives from submit to their end.
#include <algorithm>
#include <cstring>
#include <new>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

// A send that has begun is completed from a copy.
bool keep_copy(Outgoing& begun, const Operation& send) {
  try {
    begun.owned.assign(send.data, send.data + send.size);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

OperationPtr Specimen::make_operation(const bp_op& op) {
  auto operation = std::make_shared<Operation>();
  operation->sends = op.kind == BP_SEND;
  operation->peer = op.peer;
  operation->tag = op.tag;
  operation->id = next_id_++;
  const bp_buffer& buffer = operation->sends ? op.input : op.output;
  operation->data = static_cast<std::byte*>(buffer.data);
  operation->size = buffer.count * bp_dtype_size(op.dtype);
  operation->result = op.result;
  if (op.message != nullptr) {
    operation->message = &message_of(op.message);
    operation->peer = operation->message->arrival.source;
    operation->tag = operation->message->arrival.tag;
  }
  return operation;
}

// Operations that wait for the stream begin in the order of submission.
void Specimen::begin(const OperationPtr& operation) {
  if (!operation->after.empty()) {
    held_.push_back(operation);
    return wake();
  }
  if (operation->sends) {
    submit_send(operation);
  } else if (operation->message != nullptr) {
    submit_probed(operation);
  } else {
    submit_receive(operation);
  }
}

void Specimen::begin_held() {
  while (!held_.empty() && all_done(held_.front()->after)) {
    const OperationPtr operation = held_.front();
    held_.pop_front();
    operation->after.clear();
    begin(operation);
  }
}

bool Specimen::eager(const Operation& send) {
  return send.size <= settings_->eager_limit && peer(send.peer).in_window + send.size + kOverhead <= settings_->window;
}

void Specimen::submit_send(const OperationPtr& send) {
  Peer& target = peer(send->peer);
  if (target.gone) return fail(*send, about(*send, *target.gone));
  const bool copied = eager(*send);
  std::vector<std::byte> bytes;
  if (copied) {
    target.in_window += send->size + kOverhead;
    if (send->size > 0) bytes.assign(send->data, send->data + send->size);
  }
  if (send->peer == rank_) {
    Arrival arrival{rank_, send->channel, send->tag, send->size, copied, std::move(bytes), 0, nullptr, 0};
    if (!copied) arrival.local_send = send;
    arrive(std::move(arrival));
  } else if (copied) {
    enqueue(send->peer, {kEager, send->channel, send->tag, send->size, 0, 0}, std::move(bytes));
  } else {
    waiting_sends_[send->id] = send;
    enqueue(send->peer, {kRequest, send->channel, send->tag, send->size, send->id, 0});
  }
  if (copied) finish(*send);
}

void Specimen::submit_receive(const OperationPtr& receive) {
  if (std::optional<Arrival> arrival = matcher_.take_arrival(*receive)) return match(receive, std::move(*arrival));
  if (receive->peer == BP_ANY_SOURCE) {
    if (all_peers_left()) {
      return fail(*receive, about(*receive, sdk::Failure(BP_PEER_LOST, "all other ranks have left the group")));
    }
  } else if (const auto& gone = peer(receive->peer).gone) {
    return fail(*receive, about(*receive, *gone));
  }
  matcher_.add_receive(receive);
}

void Specimen::arrive(Arrival arrival) {
  if (const OperationPtr receive = matcher_.take_receive(arrival)) return match(receive, std::move(arrival));
  if (!leaving_) matcher_.add_arrival(std::move(arrival));
}

// A receive and its message have found each other; neither is filed any more.
void Specimen::match(const OperationPtr& receive, Arrival arrival) {
  receive->got_tag = arrival.tag;
  if (arrival.eager) {
    credit(arrival.source, arrival.size + kOverhead);
    return deliver(receive, arrival.source, arrival.bytes.data(), arrival.size);
  }
  if (arrival.local_send) {
    deliver(receive, arrival.source, arrival.local_send->data, arrival.size);
    return finish(*arrival.local_send);
  }
  if (arrival.size > receive->size) {
    enqueue(arrival.source, {kDrop, arrival.channel, 0, 0, arrival.remote_id, 0});
    return truncated(receive, arrival.source, arrival.size);
  }
  receive->source = arrival.source;
  incoming_[receive->id] = receive;
  enqueue(arrival.source, {kReady, arrival.channel, 0, 0, arrival.remote_id, receive->id});
}

void Specimen::deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) {
  if (size > receive->size) return truncated(receive, source, size);
  if (size > 0) std::memcpy(receive->data, data, size);
  report(*receive, source, size);
  finish(*receive);
}

void Specimen::report(const Operation& receive, int32_t source, uint64_t size) {
  if (receive.result == nullptr) return;
  receive.result->source = source;
  receive.result->bytes = size;
  if (BP_HAS(receive.result, tag)) receive.result->tag = receive.got_tag;
}

void Specimen::truncated(const OperationPtr& receive, int32_t source, uint64_t size) {
  report(*receive, source, size);
  fail(*receive, sdk::Failure(BP_INVALID,
                              receive->text() + ": a message of " + std::to_string(size) + " bytes from rank " +
                                  std::to_string(source) + " does not fit the receive buffer of " +
                                  std::to_string(receive->size) + " bytes; receive it into a larger one",
                              source));
}

void Specimen::credit(int32_t source, uint64_t size) {
  Peer& sender = peer(source);
  if (source == rank_) {
    sender.in_window -= size;
    return;
  }
  sender.owed += size;
  if (sender.owed < settings_->window / 4 || sender.gone) return;
  enqueue(source, {kCredit, 0, 0, sender.owed, 0, 0});
  sender.owed = 0;
}

void Specimen::give_up(const OperationPtr& operation, const sdk::Failure& why) {
  if (operation->done) return;
  if (std::erase(held_, operation) > 0) return fail(*operation, why);
  if (operation->sends) return give_up_send(operation, why);
  if (!matcher_.remove_receive(*operation)) {
    incoming_.erase(operation->id);
    for (Peer& each : peers_) {
      if (each.into == operation) each.into = nullptr;  // the rest of the message is read and dropped
    }
  }
  fail(*operation, why);
}

void Specimen::give_up_send(const OperationPtr& send, const sdk::Failure& why) {
  for (Message& each : probed_) {
    if (each.arrival.local_send != send) continue;
    each.arrival.local_send = nullptr;
    each.lost.emplace(withdrawn(rank_));
  }
  if (waiting_sends_.erase(send->id) > 0) {
    enqueue(send->peer, {kWithdraw, send->channel, send->tag, 0, send->id, 0});
  } else if (!matcher_.remove_local(*send)) {
    for (Outgoing& each : peer(send->peer).outgoing) {
      if (each.send != send) continue;
      each.send = nullptr;
      if (each.sent == 0) {
        each.frame = {kVoid, send->channel, 0, 0, 0, each.frame.other};
      } else if (send->size > 0 && !keep_copy(each, *send)) {
        break_off(send->peer, "there was no memory for the rest of a message");
        break;  // nothing is left to be sent
      }
    }
  }
  fail(*send, why);
}

void Specimen::drop_peer(int32_t rank, const sdk::Failure& why) {
  Peer& lost = peer(rank);
  if (lost.gone) return;
  lost.gone.emplace(why);
  for (const OperationPtr& receive : matcher_.drop_source(rank)) fail(*receive, about(*receive, why));
  lose_probed(rank, why);
  std::vector<OperationPtr> homeless;
  std::erase_if(incoming_, [&homeless, rank](const auto& entry) {
    if (entry.second->source != rank) return false;
    homeless.push_back(entry.second);
    return true;
  });
  lost.into = nullptr;
  for (const OperationPtr& receive : homeless) {
    receive->source = -1;
    if (receive->peer == BP_ANY_SOURCE) {
      repost(receive);
    } else {
      fail(*receive, about(*receive, why));
    }
  }
  std::vector<OperationPtr> sends;
  for (const auto& [id, send] : waiting_sends_) {
    if (send->peer == rank) sends.push_back(send);
  }
  for (const Outgoing& each : lost.outgoing) {
    if (each.send) sends.push_back(each.send);
  }
  for (const OperationPtr& send : sends) {
    give_up_send(send, about(*send, why));
    waiting_sends_.erase(send->id);
  }
  if (!all_peers_left()) return;
  for (const OperationPtr& receive : matcher_.take_any_source()) fail(*receive, about(*receive, why));
}

void Specimen::repost(const OperationPtr& receive) {
  if (std::optional<Arrival> arrival = matcher_.take_arrival(*receive)) {
    match(receive, std::move(*arrival));
  } else {
    matcher_.add_receive(receive);
  }
}

bool Specimen::all_peers_left() const {
  int32_t gone = 0;
  for (const Peer& each : peers_) gone += each.gone ? 1 : 0;
  return world_size_ > 1 && gone == world_size_ - 1;
}

void Specimen::finish(Task& task) {
  if (task.done) return;
  task.done = true;
  if (task.ended != nullptr) task.ended(task.to);
  changed_.notify_all();
  if (!held_.empty()) wake();
}

void Specimen::fail(Task& task, const sdk::Failure& why) {
  if (task.done) return;
  task.failure.emplace(why);
  finish(task);
}

// The cause first: a long text loses its end.
sdk::Failure Specimen::about(const Operation& operation, const sdk::Failure& why) const {
  const int32_t failed_rank = why.peer_rank() >= 0 ? why.peer_rank() : operation.peer;
  return {why.status(), std::string(why.what()) + " (" + operation.text() + ", on rank " + std::to_string(rank_) + ")",
          failed_rank, why.native_code()};
}

}  // namespace backplane::specimen
