// SPDX-License-Identifier: Apache-2.0
//
// RPC agents without the core: a host that sends messages and records what the agent reports.
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

struct RankInWorld {
  RankInWorld(int32_t number, int32_t size = 2)
      : rank(number), world_size(size) {}  // NOLINT(google-explicit-constructor)
  int32_t rank;
  int32_t world_size;
};

inline bp_agent start_agent(const bp_backend& backend, uint32_t kind, const RankInWorld& place, core::Host* host,
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

// An agent and its host. If the agent needs a group, one of the backend `below` is made, which `modify` may change.
class TestAgent {
 public:
  TestAgent(const bp_backend& agent, const std::shared_ptr<core::Store>& store, const RankInWorld& place,
            const core::KeyValues& options = {}, uint64_t max_message_bytes = uint64_t{1} << 32,
            void (*modify)(bp_agent*) = nullptr, const bp_backend& below = builtin("inproc"))
      : offered_{sizeof(bp_rpc_host), 0, this, received, failed, max_message_bytes, lost, refused},
        host_("rank " + std::to_string(place.rank), store) {
    const bool over_group = (agent.flags & BP_BACKEND_RPC_OVER_GROUP) != 0;
    if (over_group) offered_.inner_flags = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE;
    host_.offer(BP_EXT_RPC, &offered_);
    if (over_group) inner_ = start_agent(below, BP_KIND_PROCESS_GROUP, place, &host_, {}, nullptr);
    if (modify != nullptr) modify(&inner_);
    agent_ = start_agent(agent, BP_KIND_RPC, place, &host_, options, over_group ? &inner_ : nullptr);
  }
  ~TestAgent() {
    abort_agent();
    api().destroy(agent_.self);
    if (inner_.api != nullptr) static_cast<const bp_process_group_api*>(inner_.api)->destroy(inner_.self);
    EXPECT_EQ(held_, 0) << "messages were not released";
  }
  TestAgent(const TestAgent&) = delete;
  TestAgent& operator=(const TestAgent&) = delete;

  // Aborts like the core, which first ends waits for the store.
  void abort() {
    host_.request_abort("the test is over");
    abort_agent();
  }
  // Sends a payload of five bytes and a buffer of `bytes`.
  int32_t send(int32_t to, uint64_t id, uint64_t bytes, int64_t timeout_ns = BP_NO_TIMEOUT, uint32_t memory = BP_HOST) {
    auto* const sent = new Sent{this, std::vector<std::byte>(bytes)};
    return send(to, id, bp_buffer{sent->memory.data(), bytes, memory, 0}, timeout_ns, sent);
  }
  // The same with this buffer, which must outlive the message.
  int32_t send(int32_t to, uint64_t id, const bp_buffer& buffer) {
    return send(to, id, buffer, BP_NO_TIMEOUT, new Sent{this, {}});
  }
  // The error of the next message whose buffers could not be received; "" if there is none within 60 s.
  std::string refusal() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLimit, [this] { return !refusal_.empty(); });
    return std::exchange(refusal_, "");
  }
  // `watch` is called on the agent's thread for each failed message. Call before anything is sent.
  void watch_failures(std::function<void(uint64_t id)> watch) { watch_ = std::move(watch); }
  // Waits up to 60 s until the agent has not yet released `count` messages. Returns false on timeout.
  bool holds_messages(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [this, count] { return held_ == count; });
  }
  // The reported failure of a sent message; "" if none is reported within 60 s.
  std::string failure(uint64_t id) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLimit, [this, id] { return failures_.contains(id); });
    return failures_[id];
  }
  // Waits up to 60 s for at least `times` reports.
  bool reports_loss_of(int32_t peer, size_t times = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [this, peer, times] { return lost_.count(peer) >= times; });
  }
  size_t losses_of(int32_t peer) {
    const std::lock_guard lock(mutex_);
    return lost_.count(peer);
  }
  // The last reported error; "" if there is none.
  std::string loss_of(int32_t peer) {
    const std::lock_guard lock(mutex_);
    const auto behind = lost_.upper_bound(peer);
    return lost_.count(peer) == 0 ? "" : std::prev(behind)->second;
  }
  // Blocks each delivery until `count` messages in total have been delivered.
  void block_deliveries_until(int count) {
    const std::lock_guard lock(mutex_);
    blocked_until_ = count;
  }
  // Waits up to 60 s for `count` messages. Returns false on timeout, or if there are more.
  bool has_received(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [this, count] { return received_.size() >= count; }) &&
           received_.size() == count;
  }
  // The buffer sizes of the received messages, in order.
  std::vector<uint64_t> received_sizes() {
    const std::lock_guard lock(mutex_);
    return received_;
  }
  // Their payload sizes.
  std::vector<uint64_t> received_payloads() {
    const std::lock_guard lock(mutex_);
    return payloads_;
  }

 private:
  static constexpr std::chrono::seconds kLimit{60};

  struct Sent {
    TestAgent* side;
    std::vector<std::byte> memory;
  };

  int32_t send(int32_t to, uint64_t id, const bp_buffer& buffer, int64_t timeout_ns, Sent* sent) {
    {
      const std::lock_guard lock(mutex_);
      ++held_;
    }
    bp_rpc_message message = {sizeof(message), 1, id, "hello", 5, &buffer, release, sent};
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
  static TestAgent& of(void* ctx) { return *static_cast<TestAgent*>(ctx); }
  static void release(void* owner) {
    const std::unique_ptr<Sent> sent(static_cast<Sent*>(owner));
    const std::lock_guard lock(sent->side->mutex_);
    --sent->side->held_;
    sent->side->changed_.notify_all();
  }
  static void received(void* ctx, int32_t, const bp_rpc_message* message) {
    const uint64_t size = message->buffer_count == 0 ? 0 : message->buffers[0].count;
    message->release(message->owner);
    std::unique_lock lock(of(ctx).mutex_);
    ++of(ctx).delivered_;
    of(ctx).changed_.notify_all();
    EXPECT_TRUE(of(ctx).changed_.wait_for(lock, kLimit, [ctx] { return of(ctx).delivered_ >= of(ctx).blocked_until_; }))
        << "messages are not delivered concurrently";
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
  std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  std::map<uint64_t, std::string> failures_;
  std::multimap<int32_t, std::string> lost_;
  std::vector<uint64_t> received_;
  std::vector<uint64_t> payloads_;
  std::string refusal_;
  int blocked_until_ = 0;
  int delivered_ = 0;
  int held_ = 0;  // messages that the agent has not released
  bp_agent inner_ = {};
  bp_agent agent_ = {};
};

// Two agents, which start concurrently.
struct TestAgents {
  TestAgents(const bp_backend& agent, const core::KeyValues& options,
             uint64_t max_message_bytes_of_1 = uint64_t{1} << 32, const bp_backend& below = builtin("inproc"))
      : store(core::make_inproc_store()) {
    std::thread other(
        [&] { one = std::make_unique<TestAgent>(agent, store, 1, options, max_message_bytes_of_1, nullptr, below); });
    zero = std::make_unique<TestAgent>(agent, store, 0, options, uint64_t{1} << 32, nullptr, below);
    other.join();
  }
  std::shared_ptr<core::Store> store;
  std::unique_ptr<TestAgent> zero;
  std::unique_ptr<TestAgent> one;
};

}  // namespace backplane::test
