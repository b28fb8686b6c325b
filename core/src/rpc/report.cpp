// SPDX-License-Identifier: Apache-2.0
//
// What a worker says of itself: counts, and its calls.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "rpc/worker.hpp"

namespace backplane::core::rpc {
namespace {

using Json = nlohmann::json;

Json json_of(const Histogram& histogram) {
  Json buckets = Json::array();
  size_t last = 0;
  for (size_t b = 0; b < Histogram::kBuckets; ++b) {
    if (histogram.count(b) > 0) last = b + 1;
  }
  uint64_t count = 0;
  for (size_t b = 0; b < last; ++b) {
    buckets.push_back(histogram.count(b));
    count += histogram.count(b);
  }
  return {{"count", count}, {"sum_us", histogram.sum_ns() / 1000}, {"below_us_powers_of_2", buckets}};
}

bool speaks_of_reference(const Calls::Pending& call) {
  return call.kind == Kind::kFork || call.kind == Kind::kDrop || call.kind == Kind::kLost;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kCall:
      return "call";
    case Kind::kRemote:
      return "remote";
    case Kind::kFetch:
      return "fetch";
    case Kind::kFork:
    case Kind::kDrop:
    case Kind::kLost:
      return "reference";
    default:
      return "message";
  }
}

}  // namespace

std::string Worker::metrics_json() const {
  const Pool::Counts pool = pool_->counts();
  size_t serving = 0;
  {
    const std::lock_guard lock(mutex_);
    serving = std::count_if(inbound_.begin(), inbound_.end(), [](const auto& each) { return !each.second->ended; });
  }
  const std::vector<Calls::Pending> pending = calls_.pending();
  const std::vector<Values::Claim> owned = values_.claims();
  const auto add_holders = [](size_t sum, const Values::Claim& claim) { return sum + claim.holders.size(); };
  Json json = {{"agent.num_pending_requests", pending.size()},
               {"agent.client_active_calls", pending.size()},
               {"agent.server_active_calls", serving},
               {"agent.server_active_async_calls", pool.waiting},
               {"agent.thread_pool_size", pool.threads},
               {"agent.num_idle_threads", pool.idle},
               {"agent.num_queued_tasks", pool.queued},
               {"num_owner_rrefs", owned.size()},
               {"num_forks", std::accumulate(owned.begin(), owned.end(), size_t{0}, add_holders)},
               {"num_user_rrefs", metrics_.refs.load()},
               {"num_pending_users", metrics_.unconfirmed.load()},
               {"num_pending_futures", std::count_if(pending.begin(), pending.end(), speaks_of_reference)}};
  for (size_t rank = 0; rank < names_.size(); ++rank) {
    const PeerMetrics& peer = metrics_.peers[rank];
    json["peers"][names_[rank]] = {{"calls_sent", peer.calls_sent.load()},
                                   {"calls_received", peer.calls_received.load()},
                                   {"bytes_sent", peer.bytes_sent.load()},
                                   {"bytes_received", peer.bytes_received.load()},
                                   {"errors", peer.errors.load()},
                                   {"timeouts", peer.timeouts.load()},
                                   {"round_trips", json_of(peer.round_trips)},
                                   {"run_times", json_of(peer.run_times)}};
  }
  return json.dump();
}

std::string Worker::calls_json() const {
  Json all = Json::array();
  const auto add = [this, &all](bool served, int32_t peer, uint64_t number, Kind kind, const std::string& function,
                                Deadline::Clock::time_point begun) -> Json& {
    all.push_back({{"kind", name_of(kind)},
                   {"direction", served ? "in" : "out"},
                   {"function", function},
                   {"peer", peer},
                   {"worker", names_[static_cast<size_t>(peer)]},
                   {"number", number},
                   {"state", "in flight"},
                   {"status", BP_AGAIN},
                   {"begin_ns", nanoseconds(begun)},
                   {"end_ns", 0}});
    return all.back();
  };
  for (const EndedCall& call : record_.calls()) {
    Json& entry = add(call.served, call.peer, call.number, call.kind, call.function, call.begun);
    entry["state"] = call.status == BP_OK ? "done" : "failed";
    entry["status"] = call.status;
    entry["end_ns"] = nanoseconds(call.ended);
  }
  for (const Calls::Pending& call : calls_.pending()) {
    add(false, call.to, call.number, call.kind, call.function, call.begun);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [key, inbound] : inbound_) {
    const Header& asked = inbound->header;
    Json& entry = add(true, key.first, asked.call, asked.kind, asked.function, inbound->arrived);
    entry["state"] = inbound->cancelled ? "cancelled, runs on" : inbound->runs ? "running" : "queued";
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace backplane::core::rpc
