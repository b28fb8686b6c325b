// SPDX-License-Identifier: Apache-2.0
#include "rpc/report.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

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

bool is_about_reference(const CallTable::Pending& call) {
  return call.kind == Kind::kFork || call.kind == Kind::kDrop || call.kind == Kind::kAbandon;
}

double age_in_seconds(Deadline::Clock::time_point begun) {
  return std::chrono::duration<double>(Deadline::Clock::now() - begun).count();
}

// The calls from or to one worker.
struct PeerCalls {
  size_t count = 0;
  Deadline::Clock::time_point begun = Deadline::Clock::time_point::max();  // of the oldest
  std::string oldest;
  const char* state = "";

  void add(Deadline::Clock::time_point when, const std::string& what, const char* state_of_call) {
    ++count;
    if (when >= begun) return;
    begun = when;
    oldest = what;
    state = state_of_call;
  }
};

// The first few workers, because error texts and log lines are limited.
template <typename Describe>
std::string list_of(const std::map<int32_t, PeerCalls>& all, Describe describe) {
  constexpr size_t kMost = 8;
  std::string text;
  size_t shown = 0;
  for (const auto& [worker, calls] : all) {
    if (shown == kMost) return fmt::format("{}, and calls of {} more workers", text, all.size() - shown);
    text += fmt::format("{}{}", shown++ == 0 ? "" : ", ", describe(worker, calls));
  }
  return text;
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
    case Kind::kAbandon:
      return "reference";
    default:
      return "message";
  }
}

}  // namespace

void Report::attach_to(Group& group) {
  group.call_observer().set_metrics(
      context_.peers.own_name(),
      [weak = context_.worker, this](const std::function<void(const bp_metric& metric)>& each) {
        const auto worker = weak.lock();  // keeps `this`
        if (!worker) return;
        for (const Metric& it : metrics()) {
          const char* peer = it.peer < 0 ? nullptr : context_.peers.name(it.peer).c_str();
          each({sizeof(bp_metric), it.kind, it.name, peer, it.value});
        }
      });
  context_.recorder.set_group(&group, global_ranks_);
  group.trace().set_calls([weak = context_.worker, this] {
    const auto worker = weak.lock();
    if (!worker) return std::string(R"({"calls":[]})");
    return fmt::format(R"({{"calls":{},"call_metrics":{}}})", calls_json(), metrics_json());
  });
}

std::vector<Report::Metric> Report::metrics() const {
  const base::Executor::Counts threads = context_.executor.counts();
  const std::vector<Server::Status> served = server_.calls();
  const auto serving =
      std::count_if(served.begin(), served.end(), [](const Server::Status& call) { return !call.ended; });
  const std::vector<CallTable::Pending> pending = caller_.calls().pending();
  const std::vector<Values::Claim> owned = references_.values().claims();
  const auto add_holders = [](size_t sum, const Values::Claim& claim) { return sum + claim.holders.size(); };
  const uint64_t forks = std::accumulate(owned.begin(), owned.end(), size_t{0}, add_holders);
  const auto about_references = std::count_if(pending.begin(), pending.end(), is_about_reference);
  const Metrics& counters = context_.metrics;
  std::vector<Metric> all = {{"agent.num_pending_requests", BP_METRIC_GAUGE, pending.size()},
                             {"agent.client_active_calls", BP_METRIC_GAUGE, pending.size()},
                             {"agent.server_active_calls", BP_METRIC_GAUGE, static_cast<uint64_t>(serving)},
                             {"agent.server_active_async_calls", BP_METRIC_GAUGE, threads.blocked},
                             {"agent.thread_pool_size", BP_METRIC_GAUGE, threads.threads},
                             {"agent.num_idle_threads", BP_METRIC_GAUGE, threads.idle},
                             {"agent.num_queued_tasks", BP_METRIC_GAUGE, threads.queued},
                             {"num_owner_rrefs", BP_METRIC_GAUGE, owned.size()},
                             {"num_forks", BP_METRIC_GAUGE, forks},
                             {"num_user_rrefs", BP_METRIC_GAUGE, counters.refs.load()},
                             {"num_pending_users", BP_METRIC_GAUGE, counters.unconfirmed.load()},
                             {"num_pending_futures", BP_METRIC_GAUGE, static_cast<uint64_t>(about_references)}};
  for (int32_t rank = 0; rank < context_.peers.size(); ++rank) {
    const PeerMetrics& peer = counters.peers[static_cast<size_t>(rank)];
    const auto add = [&all, rank](const char* name, const std::atomic<uint64_t>& value) {
      all.push_back({name, BP_METRIC_COUNTER, value.load(), rank});
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

std::string Report::metrics_json() const {
  Json json = {};
  for (const Metric& each : metrics()) {
    Json& object = each.peer < 0 ? json : json["peers"][context_.peers.name(each.peer)];
    object[each.name] = each.value;
  }
  for (int32_t rank = 0; rank < context_.peers.size(); ++rank) {
    Json& peer = json["peers"][context_.peers.name(rank)];
    const PeerMetrics& counters = context_.metrics.peers[static_cast<size_t>(rank)];
    peer["round_trips"] = json_of(counters.round_trips);
    peer["run_times"] = json_of(counters.run_times);
  }
  return json.dump();
}

std::string Report::calls_json() const {
  Json all = Json::array();
  const auto add = [this, &all](bool served, int32_t peer, uint64_t number, Kind kind, const std::string& function,
                                Deadline::Clock::time_point begun) -> Json& {
    all.push_back({{"kind", name_of(kind)},
                   {"direction", served ? "in" : "out"},
                   {"function", function},
                   {"peer", peer},
                   {"worker", context_.peers.name(peer)},
                   {"number", number},
                   {"state", "in flight"},
                   {"status", BP_AGAIN},
                   {"begin_ns", nanoseconds(begun)},
                   {"end_ns", 0}});
    return all.back();
  };
  for (const EndedCall& call : context_.recorder.calls()) {
    Json& entry = add(call.served, call.peer, call.number, call.kind, call.function, call.begun);
    entry["state"] = call.status == BP_OK ? "done" : "failed";
    entry["status"] = call.status;
    entry["end_ns"] = nanoseconds(call.ended);
  }
  for (const CallTable::Pending& call : caller_.calls().pending()) {
    add(false, call.to, call.number, call.kind, call.function, call.begun);
  }
  for (const Server::Status& call : server_.calls()) {
    Json& entry = add(true, call.from, call.number, call.kind, call.function, call.arrived);
    entry["state"] = call.cancelled ? "cancelled, runs on" : call.started ? "running" : "queued";
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Report::running_functions() const {
  std::map<int32_t, PeerCalls> all;
  for (const Server::Status& call : server_.calls()) {
    const char* const state = call.started ? "runs" : "waits for a thread";
    all[call.from].add(call.arrived, fmt::format("'{}'", call.function), state);
  }
  if (all.empty()) return "a callback, or the destructor of a value";
  return list_of(all, [this](int32_t from, const PeerCalls& calls) {
    const std::string oldest = fmt::format("{} for '{}' {} for {:.1f} s", calls.oldest, context_.peers.name(from),
                                           calls.state, age_in_seconds(calls.begun));
    return calls.count == 1 ? oldest : fmt::format("{} and {} more", oldest, calls.count - 1);
  });
}

std::string Report::pending_calls() const {
  std::map<int32_t, PeerCalls> all;
  for (const CallTable::Pending& call : caller_.calls().pending()) {
    const bool is_call = call.kind == Kind::kCall || call.kind == Kind::kRemote;
    all[call.to].add(call.begun, is_call ? fmt::format("'{}'", call.function) : "a message about a reference", "");
  }
  const std::string waits = list_of(all, [this](int32_t to, const PeerCalls& calls) {
    const std::string& worker = context_.peers.name(to);
    const double age = age_in_seconds(calls.begun);
    if (calls.count == 1) return fmt::format("{} on '{}' for {:.1f} s", calls.oldest, worker, age);
    return fmt::format("{} calls on '{}', the oldest of them {} for {:.1f} s", calls.count, worker, calls.oldest, age);
  });
  const std::string text = waits.empty() ? "" : fmt::format("; it waits for {}", waits);
  return server_.is_idle() ? text : fmt::format("{}; here {}", text, running_functions());
}

std::vector<std::string> Report::leaks() const {
  std::vector<std::string> all;
  for (const Values::Claim& claim : references_.values().claims()) {
    std::string holders;
    for (const int32_t holder : claim.holders) {
      holders += fmt::format("{}'{}'", holders.empty() ? "" : ", ", context_.peers.name(holder));
    }
    const std::string maker = claim.function.empty() ? "" : fmt::format(" (made by '{}')", claim.function);
    all.push_back(fmt::format("value {}.{}{} of worker '{}' is still referred to by {}", claim.value.maker,
                              claim.value.number, maker, context_.peers.own_name(), holders));
  }
  return all;
}

}  // namespace backplane::core::rpc
