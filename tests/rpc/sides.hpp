// SPDX-License-Identifier: Apache-2.0
//
// RPC agents by themselves, without the core's calls around them: what one is given, and what it tells its host.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backplane/abi/ext/rpc.h"
#include "backplane/abi/process_group.h"
#include "options/option_value.hpp"
#include "plugin/builtins.hpp"
#include "plugin/host.hpp"
#include "store/store.hpp"

namespace backplane::test {

inline const bp_backend& builtin(const std::string& id) {
  for (const bp_plugin* plugin : core::builtin_plugins()) {
    for (uint32_t i = 0; i < plugin->backend_count; ++i) {
      if (plugin->backends[i]->id == id) return *plugin->backends[i];
    }
  }
  throw std::runtime_error(id + " is not built in");
}

struct Place {
  Place(int32_t of, int32_t among = 2) : rank(of), world_size(among) {}  // NOLINT(google-explicit-constructor)
  int32_t rank;
  int32_t world_size;
};

inline bp_agent start_agent(const bp_backend& backend, uint32_t kind, const Place& place, core::Host* host,
                            const core::KeyValues& options, const bp_agent* inner) {
  const core::KeyValues complete = core::complete_options(backend, options);
  std::vector<bp_key_value> values;
  for (const auto& [key, value] : complete) values.push_back({key.c_str(), value.c_str()});
  std::vector<int32_t> global_ranks(static_cast<size_t>(place.world_size));
  std::iota(global_ranks.begin(), global_ranks.end(), 0);
  const bp_init init = {sizeof(bp_init),
                        place.rank,
                        place.world_size,
                        -1,
                        "test",
                        host->table(),
                        nullptr,
                        values.data(),
                        static_cast<uint32_t>(values.size()),
                        kind,
                        INT64_C(20'000'000'000),
                        global_ranks.data(),
                        inner,
                        nullptr,
                        nullptr,
                        nullptr};
  bp_agent agent = {};
  agent.struct_size = sizeof(bp_agent);
  bp_error err;
  bp_error_init(&err);
  if (backend.init(&backend, &init, &agent, &err) != BP_OK) throw std::runtime_error(err.text);
  return agent;
}

// A worker. Over a group of `below`'s, if its agent needs one, which `spoil` may change.
class Side {
 public:
  Side(const bp_backend& agent, const std::shared_ptr<core::Store>& store, const Place& place,
       const core::KeyValues& options = {}, uint64_t max_message_bytes = uint64_t{1} << 32,
       void (*spoil)(bp_agent*) = nullptr, const bp_backend& below = builtin("inproc"))
      : offered_{sizeof(bp_rpc_host), 0, this, received, failed, max_message_bytes, lost, refused},
        host_("rank " + std::to_string(place.rank), store) {
    const bool over_group = (agent.flags & BP_BACKEND_RPC_OVER_GROUP) != 0;
    if (over_group) offered_.inner_flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE;
    host_.offer(BP_EXT_RPC, &offered_);
    if (over_group) inner_ = start_agent(below, BP_KIND_PROCESS_GROUP, place, &host_, {}, nullptr);
    if (spoil != nullptr) spoil(&inner_);
    agent_ = start_agent(agent, BP_KIND_RPC, place, &host_, options, over_group ? &inner_ : nullptr);
  }
  ~Side() {
    abort_agent();
    api().destroy(agent_.self);
    if (inner_.api != nullptr) static_cast<const bp_process_group_api*>(inner_.api)->destroy(inner_.self);
    EXPECT_EQ(held_, 0) << "messages were not given back";
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  // As the core aborts it, which first ends what waits for the store.
  void abort() {
    host_.request_abort("the test is over");
    abort_agent();
  }
  // A message of five bytes and a buffer.
  int32_t send(int32_t to, uint64_t id, uint64_t bytes, int64_t timeout_ns = BP_NO_TIMEOUT, uint32_t memory = BP_HOST) {
    auto* const lent = new Lent{this, std::vector<std::byte>(bytes)};
    return send(to, id, bp_buffer{lent->memory.data(), bytes, memory, 0}, timeout_ns, lent);
  }
  // The same with this buffer, which lives long enough.
  int32_t send(int32_t to, uint64_t id, const bp_buffer& buffer) {
    return send(to, id, buffer, BP_NO_TIMEOUT, new Lent{this, {}});
  }
  // Its core is an older one: it knows nothing of messages without their buffers.
  // The error of the next message without its buffers; "" if there is none within 20 s.
  std::string refusal() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return !refusal_.empty(); });
    return std::exchange(refusal_, "");
  }
  // Called by the agent's thread for each message that it says has failed. Before any is sent.
  void watch_failures(std::function<void(uint64_t id)> watch) { watch_ = std::move(watch); }
  // Waits until the agent has so many messages; false if it has others after 20 s.
  bool comes_to_hold(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this, count] { return held_ == count; });
  }
  // Why a message of this worker's did not arrive; "" if that was not said within 20 s.
  std::string failure(uint64_t id) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [this, id] { return failures_.contains(id); });
    return failures_[id];
  }
  // So many times, or more.
  bool hears_of_the_loss_of(int32_t peer, size_t times = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this, peer, times] { return lost_.count(peer) >= times; });
  }
  size_t losses_of(int32_t peer) {
    const std::lock_guard lock(mutex_);
    return lost_.count(peer);
  }
  // The last error.
  std::string loss_of(int32_t peer) {
    const std::lock_guard lock(mutex_);
    const auto behind = lost_.upper_bound(peer);
    return lost_.count(peer) == 0 ? "" : std::prev(behind)->second;
  }
  // From now on each message is held, where it is delivered, until so many have come in all.
  void hold_until_there_are(int count) {
    const std::lock_guard lock(mutex_);
    meeting_ = count;
  }
  // Waits for so many messages; false if there are others, or none come within 20 s.
  bool has_received(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this, count] { return received_.size() >= count; }) &&
           received_.size() == count;
  }
  // How large the buffer was of each message that came, in that order.
  std::vector<uint64_t> received_sizes() {
    const std::lock_guard lock(mutex_);
    return received_;
  }
  // How large its payload was.
  std::vector<uint64_t> received_payloads() {
    const std::lock_guard lock(mutex_);
    return payloads_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{20};

  struct Lent {
    Side* side;
    std::vector<std::byte> memory;
  };

  int32_t send(int32_t to, uint64_t id, const bp_buffer& buffer, int64_t timeout_ns, Lent* lent) {
    {
      const std::lock_guard lock(mutex_);
      ++held_;
    }
    bp_rpc_message message = {sizeof(message), 1, id, "hello", 5, &buffer, give_back, lent};
    bp_error err;
    bp_error_init(&err);
    return api().send(agent_.self, to, &message, timeout_ns, &err);
  }
  static void refused(void* ctx, int32_t, const bp_rpc_message* message, const bp_error* err) {
    EXPECT_EQ(message->buffer_count, 0U);
    EXPECT_EQ(message->payload_size, 5U);
    message->release(message->owner);
    const std::lock_guard lock(of(ctx).mutex_);
    of(ctx).refusal_ = err->text;
    of(ctx).changed_.notify_all();
  }
  static Side& of(void* ctx) { return *static_cast<Side*>(ctx); }
  static void give_back(void* owner) {
    const std::unique_ptr<Lent> lent(static_cast<Lent*>(owner));
    const std::lock_guard lock(lent->side->mutex_);
    --lent->side->held_;
    lent->side->changed_.notify_all();
  }
  static void received(void* ctx, int32_t, const bp_rpc_message* message) {
    const uint64_t size = message->buffer_count == 0 ? 0 : message->buffers[0].count;
    message->release(message->owner);
    std::unique_lock lock(of(ctx).mutex_);
    ++of(ctx).delivered_;
    of(ctx).changed_.notify_all();
    EXPECT_TRUE(of(ctx).changed_.wait_for(lock, kPatience, [ctx] { return of(ctx).delivered_ >= of(ctx).meeting_; }))
        << "messages are not delivered at a time";
    of(ctx).received_.push_back(size);
    of(ctx).payloads_.push_back(message->payload_size);
    of(ctx).changed_.notify_all();
  }
  static void failed(void* ctx, int32_t, uint64_t id, const bp_error* err) {
    if (of(ctx).watch_) of(ctx).watch_(id);
    const std::lock_guard lock(of(ctx).mutex_);
    of(ctx).failures_[id] += err->text;
    of(ctx).changed_.notify_all();
  }
  static void lost(void* ctx, int32_t peer, const bp_error* err) {
    const std::lock_guard lock(of(ctx).mutex_);
    of(ctx).lost_.emplace(peer, err->text);
    of(ctx).changed_.notify_all();
  }

  void abort_agent() {
    bp_error why;
    bp_error_init(&why);
    bp_error_set(&why, BP_CANCELLED, 0, -1, "the test is over");
    api().abort(agent_.self, &why);
  }
  const bp_rpc_api& api() const { return *static_cast<const bp_rpc_api*>(agent_.api); }

  bp_rpc_host offered_;
  core::Host host_;
  std::function<void(uint64_t id)> watch_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<uint64_t, std::string> failures_;
  std::multimap<int32_t, std::string> lost_;
  std::vector<uint64_t> received_;
  std::vector<uint64_t> payloads_;
  std::string refusal_;
  int meeting_ = 0;
  int delivered_ = 0;
  int held_ = 0;  // messages that the agent has
  bp_agent inner_ = {};
  bp_agent agent_ = {};
};

// Both, which wait for each other.
struct Sides {
  Sides(const bp_backend& agent, const core::KeyValues& options, uint64_t most_bytes_of_1 = uint64_t{1} << 32,
        const bp_backend& below = builtin("inproc"))
      : store(core::make_inproc_store()) {
    std::thread other([&] { one = std::make_unique<Side>(agent, store, 1, options, most_bytes_of_1, nullptr, below); });
    zero = std::make_unique<Side>(agent, store, 0, options, uint64_t{1} << 32, nullptr, below);
    other.join();
  }
  std::shared_ptr<core::Store> store;
  std::unique_ptr<Side> zero;
  std::unique_ptr<Side> one;
};

}  // namespace backplane::test
