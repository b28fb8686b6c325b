// SPDX-License-Identifier: Apache-2.0
//
// Messages that a probe took: they wait here for their receive, their drop or the end of the group.
#include <algorithm>

#include "specimen.hpp"

namespace backplane::specimen {

Message* Specimen::probe(int32_t source, uint64_t tag) {
  const Lock lock(mutex_);
  require_alive();
  Operation wanted;
  wanted.peer = source;
  wanted.tag = tag;
  if (std::optional<Arrival> arrival = matcher_.take_arrival(wanted)) {
    return &probed_.emplace_back(Message{std::move(*arrival), std::nullopt});
  }
  if (source == BP_ANY_SOURCE) {
    if (all_peers_left()) throw sdk::Failure(BP_PEER_LOST, "all other ranks have left the group");
  } else if (const auto& gone = peer(source).gone) {
    throw about(wanted, *gone);
  }
  return nullptr;
}

Message Specimen::take_probed(const Message* message) {
  const auto here =
      std::find_if(probed_.begin(), probed_.end(), [message](const Message& each) { return &each == message; });
  Message taken = std::move(*here);
  probed_.erase(here);
  return taken;
}

void Specimen::submit_probed(const OperationPtr& receive) {
  Message taken = take_probed(receive->message);
  if (taken.lost) return fail(*receive, about(*receive, *taken.lost));
  match(receive, std::move(taken.arrival));
}

void Specimen::drop(Message* message) {
  const Lock lock(mutex_);
  const Message taken = take_probed(message);
  const Arrival& arrival = taken.arrival;
  if (aborted_ || taken.lost) return;
  if (arrival.eager) return credit(arrival.source, arrival.size + kOverhead);
  if (arrival.local_send) return finish(*arrival.local_send);
  enqueue(arrival.source, {kDrop, arrival.channel, 0, 0, arrival.remote_id, 0});
}

// Messages that were sent eagerly have arrived already.
void Specimen::lose_probed(int32_t source, const sdk::Failure& why) {
  for (Message& each : probed_) {
    if (each.arrival.source == source && !each.arrival.eager && !each.lost) each.lost.emplace(why);
  }
}

void Specimen::withdraw_probed(int32_t source, uint64_t send) {
  for (Message& each : probed_) {
    if (each.arrival.source == source && !each.arrival.eager && each.arrival.remote_id == send) {
      each.lost.emplace(withdrawn(source));
    }
  }
}

sdk::Failure Specimen::withdrawn(int32_t source) {
  return {BP_CANCELLED, "rank " + std::to_string(source) + " has cancelled its send", source};
}

void Specimen::report_failure(int32_t rank, const std::string& why) {
  bp_error error;
  bp_error_init(&error);
  bp_error_set(&error, BP_PEER_LOST, 0, rank,
               ("the connection to rank " + std::to_string(rank) + " is gone: " + why).c_str());
  host_->get()->report_failure(host_->get()->ctx, &error);
}

}  // namespace backplane::specimen
