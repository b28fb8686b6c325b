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

std::vector<Worker::Metric> Worker::metrics() const {
  const base::Executor::Counts threads = executor_->counts();
  size_t serving = 0;
  {
    const std::lock_guard lock(mutex_);
    serving = std::count_if(inbound_.begin(), inbound_.end(), [](const auto& each) { return !each.second->ended; });
  }
  const std::vector<Calls::Pending> pending = calls_.pending();
  const std::vector<Values::Claim> owned = values_.claims();
  const auto add_holders = [](size_t sum, const Values::Claim& claim) { return sum + claim.holders.size(); };
  const uint64_t forks = std::accumulate(owned.begin(), owned.end(), size_t{0}, add_holders);
  const auto words = std::count_if(pending.begin(), pending.end(), speaks_of_reference);
  std::vector<Metric> all = {{"agent.num_pending_requests", BP_METRIC_GAUGE, pending.size()},
                             {"agent.client_active_calls", BP_METRIC_GAUGE, pending.size()},
                             {"agent.server_active_calls", BP_METRIC_GAUGE, serving},
                             {"agent.server_active_async_calls", BP_METRIC_GAUGE, threads.blocked},
                             {"agent.thread_pool_size", BP_METRIC_GAUGE, threads.threads},
                             {"agent.num_idle_threads", BP_METRIC_GAUGE, threads.idle},
                             {"agent.num_queued_tasks", BP_METRIC_GAUGE, threads.queued},
                             {"num_owner_rrefs", BP_METRIC_GAUGE, owned.size()},
                             {"num_forks", BP_METRIC_GAUGE, forks},
                             {"num_user_rrefs", BP_METRIC_GAUGE, metrics_.refs.load()},
                             {"num_pending_users", BP_METRIC_GAUGE, metrics_.unconfirmed.load()},
                             {"num_pending_futures", BP_METRIC_GAUGE, static_cast<uint64_t>(words)}};
  for (size_t rank = 0; rank < names_.size(); ++rank) {
    const PeerMetrics& peer = metrics_.peers[rank];
    const auto add = [&all, rank](const char* name, const std::atomic<uint64_t>& value) {
      all.push_back({name, BP_METRIC_COUNTER, value.load(), static_cast<int32_t>(rank)});
    };
    add("calls_sent", peer.calls_sent);
    add("calls_received", peer.calls_received);
    add("bytes_sent", peer.bytes_sent);
    add("bytes_received", peer.bytes_received);
    add("errors", peer.errors);
    add("timeouts", peer.timeouts);
  }
  return all;
}

std::string Worker::metrics_json() const {
  Json json = {};
  for (const Metric& each : metrics()) {
    Json& about = each.peer < 0 ? json : json["peers"][names_[static_cast<size_t>(each.peer)]];
    about[each.name] = each.value;
  }
  for (size_t rank = 0; rank < names_.size(); ++rank) {
    Json& peer = json["peers"][names_[rank]];
    peer["round_trips"] = json_of(metrics_.peers[rank].round_trips);
    peer["run_times"] = json_of(metrics_.peers[rank].run_times);
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
