// SPDX-License-Identifier: Apache-2.0
//
// The agent over a process group by itself: what one refuses, the other hears of.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backplane/abi/ext/rpc.h"
#include "backplane/abi/process_group.h"
#include "options/option_value.hpp"
#include "plugin/builtins.hpp"
#include "plugin/host.hpp"
#include "store/store.hpp"

namespace backplane::core {
namespace {

const bp_backend& builtin(const std::string& id) {
  for (const bp_plugin* plugin : builtin_plugins()) {
    for (uint32_t i = 0; i < plugin->backend_count; ++i) {
      if (plugin->backends[i]->id == id) return *plugin->backends[i];
    }
  }
  throw std::runtime_error(id + " is not built in");
}

// One of two workers.
class Side {
 public:
  Side(const std::shared_ptr<Store>& store, int32_t rank, uint64_t most_bytes)
      : offered_{sizeof(bp_rpc_host),
                 BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE,
                 this,
                 received,
                 failed,
                 most_bytes,
                 lost},
        host_("rank " + std::to_string(rank), store) {
    host_.offer(BP_EXT_RPC, &offered_);
    start("inproc", BP_KIND_PROCESS_GROUP, rank, &inner_);
    start("process_group", BP_KIND_RPC, rank, &agent_);
  }
  ~Side() {
    bp_error why;
    bp_error_init(&why);
    bp_error_set(&why, BP_CANCELLED, 0, -1, "the test is over");
    api().abort(agent_.self, &why);
    api().destroy(agent_.self);
    static_cast<const bp_process_group_api*>(inner_.api)->destroy(inner_.self);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void send(int32_t to, uint64_t id, uint64_t bytes) {
    auto* const memory = new std::vector<std::byte>(bytes);
    const bp_buffer buffer = {memory->data(), bytes, BP_HOST, 0};
    bp_rpc_message message = {sizeof(message), 1, id, "hello", 5, &buffer, nullptr, memory};
    message.release = [](void* owner) { delete static_cast<std::vector<std::byte>*>(owner); };
    bp_error err;
    bp_error_init(&err);
    ASSERT_EQ(api().send(agent_.self, to, &message, BP_NO_TIMEOUT, &err), BP_OK) << err.text;
  }
  // What became of a message that this worker sent; "" if nothing did within 20 s.
  std::string failure(uint64_t id) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [this, id] { return failures_.contains(id); });
    return failures_[id];
  }
  bool has_received(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this, count] { return received_ == count; });
  }

 private:
  static Side& of(void* ctx) { return *static_cast<Side*>(ctx); }
  static void received(void* ctx, int32_t, const bp_rpc_message* message) {
    message->release(message->owner);
    const std::lock_guard lock(of(ctx).mutex_);
    ++of(ctx).received_;
    of(ctx).changed_.notify_all();
  }
  static void failed(void* ctx, int32_t, uint64_t id, const bp_error* err) {
    const std::lock_guard lock(of(ctx).mutex_);
    of(ctx).failures_[id] += err->text;
    of(ctx).changed_.notify_all();
  }
  static void lost(void*, int32_t, const bp_error*) {}

  const bp_rpc_api& api() const { return *static_cast<const bp_rpc_api*>(agent_.api); }
  void start(const std::string& id, uint32_t kind, int32_t rank, bp_agent* agent) {
    const bp_backend& backend = builtin(id);
    const KeyValues options = complete_options(backend, {});
    std::vector<bp_key_value> values;
    for (const auto& [key, value] : options) values.push_back({key.c_str(), value.c_str()});
    const std::vector<int32_t> global_ranks = {0, 1};
    const bp_init init = {sizeof(bp_init),
                          rank,
                          2,
                          -1,
                          "test",
                          host_.table(),
                          nullptr,
                          values.data(),
                          static_cast<uint32_t>(values.size()),
                          kind,
                          INT64_C(20'000'000'000),
                          global_ranks.data(),
                          kind == BP_KIND_RPC ? &inner_ : nullptr};
    agent->struct_size = sizeof(bp_agent);
    bp_error err;
    bp_error_init(&err);
    if (backend.init(&backend, &init, agent, &err) != BP_OK) throw std::runtime_error(err.text);
  }

  const bp_rpc_host offered_;
  Host host_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::string> failures_;
  size_t received_ = 0;
  bp_agent inner_ = {};
  bp_agent agent_ = {};
};

TEST(ProcessGroupAgentTest, WhoRefusesAMessageTellsItsSender) {
  const std::shared_ptr<Store> store = make_inproc_store();
  std::unique_ptr<Side> narrow;
  std::thread other([&narrow, &store] { narrow = std::make_unique<Side>(store, 1, 50000); });
  Side wide(store, 0, uint64_t{1} << 30);
  other.join();
  wide.send(1, 7, 100000);  // in parts
  wide.send(1, 8, 2000000);
  wide.send(1, 9, 1000);
  for (const uint64_t id : {7, 8}) {
    EXPECT_EQ(wide.failure(id),
              "its receiver refused it: the message is larger than this worker takes (max_message_bytes)");
  }
  wide.send(1, 10, 40000);
  EXPECT_TRUE(narrow->has_received(2));
}

}  // namespace
}  // namespace backplane::core
