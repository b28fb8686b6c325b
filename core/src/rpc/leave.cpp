// SPDX-License-Identifier: Apache-2.0
//
// How workers leave, in peace or by dying, and what a worker has counted.
#include <nlohmann/json.hpp>
#include <utility>

#include "group/objects.hpp"
#include "log.hpp"
#include "rpc/worker.hpp"

namespace backplane::core::rpc {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLookNs = 1'000'000;  // between looks at whether this worker is quiet

int64_t given_or_default(int64_t timeout_ns) { return timeout_ns == 0 ? BP_DEFAULT_TIMEOUT_NS : timeout_ns; }

std::vector<uint64_t> sum_over_all(Group& group, std::vector<uint64_t> numbers, int64_t timeout_ns) {
  bp_op op = {};
  op.struct_size = sizeof(bp_op);
  op.kind = BP_ALL_REDUCE;
  op.dtype = BP_U64;
  op.reduce_op = BP_SUM;
  op.timeout_ns = timeout_ns;
  op.input = {numbers.data(), numbers.size(), BP_HOST, 0};
  op.output = op.input;
  group.run(op);
  return numbers;
}

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

}  // namespace

Worker::~Worker() { close(Error(BP_CANCELLED, "this worker has left")); }

std::vector<std::string> Worker::all_gather(std::string_view object, int64_t timeout_ns) {
  const std::lock_guard lock(leave_mutex_);
  if (!group_) fail(BP_INVALID, "this worker has shut down");
  return exchange_objects(*group_, BP_ALL_GATHER, 0, {object}, given_or_default(timeout_ns));
}

void Worker::on_loss(const Loss& loss) {
  for (size_t rank = 0; rank < global_ranks_.size(); ++rank) {
    if (global_ranks_[rank] != loss.rank) continue;
    const auto peer = static_cast<int32_t>(rank);
    {
      const std::lock_guard lock(mutex_);
      lost_.emplace(peer, loss.text);
    }
    values_.drop_all_of(peer);
    for (const Call& call : calls_.take_all_to(peer)) {
      metrics_.peers[rank].errors.fetch_add(1, std::memory_order_relaxed);
      const Error error = labelled(call, Error(BP_PEER_LOST, loss.text, peer));
      call.done(nullptr, &error);
    }
  }
}

std::string Worker::loss_of(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = lost_.find(rank);
  return found == lost_.end() ? std::string() : found->second;
}

bool Worker::quiet(uint64_t* begun) const {
  const Calls::Counts calls = calls_.counts();
  *begun = calls.begun + arrived_.load();
  const std::lock_guard lock(mutex_);
  return calls.active == 0 && inbound_.empty();
}

// Ends when nobody has anything under way, and nobody has begun anything between two looks of all at all: a call that
// was on its way during one of them shows in the next.
void Worker::settle(Deadline deadline) {
  uint64_t before = 0;
  bool was_quiet = false;
  for (;;) {
    uint64_t begun = 0;
    while (!quiet(&begun)) {
      if (deadline.passed()) {
        fail(BP_TIMEOUT, "worker '{}' still had calls under way when the time to shut down was over",
             names_[static_cast<size_t>(rank_)]);
      }
      std::unique_lock lock(mutex_);
      quiet_.wait_for(lock, std::chrono::nanoseconds(kLookNs));
    }
    try {
      const auto sums = sum_over_all(*group_, {quiet(&begun) ? 0U : 1U, begun}, deadline.left_ns());
      if (sums[0] == 0 && was_quiet && sums[1] == before) return;
      was_quiet = sums[0] == 0;
      before = sums[1];
    } catch (const Error& error) {
      if (error.status() != BP_PEER_LOST) throw;
      // Those who are left go on without the dead.
      const auto rest = group_->shrink(deadline.left_ns());
      group_->destroy();
      group_ = rest;
      was_quiet = false;
    }
  }
}

std::vector<std::string> Worker::shutdown(bool graceful, int64_t timeout_ns) {
  if (pool_ && pool_->inside()) {
    fail(BP_INVALID, "shutdown waits for the functions that run here, and cannot be called from one of them");
  }
  std::optional<Error> problem;
  {
    const std::lock_guard lock(leave_mutex_);
    if (!group_) return {};
    try {
      if (graceful) settle(Deadline::after(given_or_default(timeout_ns)));
    } catch (const Error& error) {
      problem.emplace(error);
    }
  }
  std::vector<std::string> leaks;
  for (const Values::Claim& claim : values_.claims()) {
    std::string holders;
    for (const int32_t holder : claim.holders) {
      holders += fmt::format("{}'{}'", holders.empty() ? "" : ", ", names_[static_cast<size_t>(holder)]);
    }
    leaks.push_back(fmt::format("value {}.{}{} of worker '{}' is still referred to by {}", claim.value.maker,
                                claim.value.number,
                                claim.function.empty() ? "" : fmt::format(" (made by '{}')", claim.function),
                                names_[static_cast<size_t>(rank_)], holders));
    if (graceful) log(BP_LOG_WARN, "rpc: {}; drop all references before shutdown", leaks.back());
  }
  close(Error(BP_CANCELLED, fmt::format("worker '{}' has shut down", names_[static_cast<size_t>(rank_)])));
  if (problem) throw Error(*problem);
  return leaks;
}

void Worker::close(const Error& why) {
  const std::lock_guard lock(leave_mutex_);
  if (!group_) return;
  if (liveness_) liveness_->remove(this);
  if (transport_) transport_->abort(why);
  {
    const std::lock_guard guard(mutex_);
    closed_ = true;
    for (const auto& [key, inbound] : inbound_) inbound->cancelled = true;
  }
  for (const Call& call : calls_.close(why)) {
    const Error error = labelled(call, why);
    call.done(nullptr, &error);
  }
  values_.close(why);
  if (pool_) pool_->stop();
  transport_.reset();
  group_->destroy();
  group_.reset();
  liveness_.reset();
}

std::string Worker::metrics_json() const {
  const Pool::Counts pool = pool_->counts();
  size_t serving = 0;
  {
    const std::lock_guard lock(mutex_);
    serving = inbound_.size();
  }
  const uint64_t pending = calls_.counts().active;
  Json json = {{"agent.num_pending_requests", pending},      {"agent.client_active_calls", pending},
               {"agent.server_active_calls", serving},       {"agent.thread_pool_size", pool.threads},
               {"agent.num_idle_threads", pool.idle},        {"agent.num_waiting_threads", pool.waiting},
               {"agent.num_queued_tasks", pool.queued},      {"rref.num_owner_rrefs", values_.size()},
               {"rref.num_user_rrefs", metrics_.refs.load()}};
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

}  // namespace backplane::core::rpc
