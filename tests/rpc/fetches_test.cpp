// SPDX-License-Identifier: Apache-2.0
//
// Cancellations of fetches reach the owner of the value, even if messages are lost or reordered. The agent of this test
// drops and delays messages, and makes false reports.
#include <array>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>

#include "backplane/abi/ext/rpc.h"
#include "backplane/abi/plugin.h"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

constexpr uint8_t kFetch = 3;  // kinds of messages, see core/src/rpc/wire.hpp
constexpr uint8_t kReply = 6;
constexpr uint8_t kError = 7;
constexpr uint8_t kCancel = 8;

// A message between the workers. It begins with a magic number, its kind and the number of its call.
struct Sent {
  int32_t from;
  std::string bytes;
  uint8_t kind() const { return static_cast<uint8_t>(bytes.at(4)); }
  uint64_t call() const {
    uint64_t number = 0;
    std::memcpy(&number, bytes.data() + 5, sizeof(number));
    return number;
  }
};

// The agents of two workers. Messages are delivered on the sender's thread.
class Hub {
 public:
  // The hub that new agents join.
  static Hub*& current() {
    static Hub* hub = nullptr;
    return hub;
  }
  // Whether a message is delivered. Set before anything is sent.
  std::function<bool(const Sent& message)> passes = [](const Sent&) { return true; };

  void join(int32_t rank, const bp_rpc_host* host) { ends_[static_cast<size_t>(rank)].host = host; }
  void leave(int32_t rank) {
    End& end = ends_[static_cast<size_t>(rank)];
    std::unique_lock lock(mutex_);
    end.closed = true;
    left_.wait(lock, [&end] { return end.inside == 0; });
  }
  void send(int32_t from, const bp_rpc_message& message) {
    EXPECT_EQ(message.buffer_count, 0U);
    const Sent sent = {from, {static_cast<const char*>(message.payload), message.payload_size}};
    message.release(message.owner);
    if (passes(sent)) deliver(sent);
  }
  void deliver(const Sent& sent) {
    End& end = ends_[static_cast<size_t>(1 - sent.from)];
    {
      const std::lock_guard lock(mutex_);
      if (end.closed) return;
      ++end.inside;
      count_[{sent.from, sent.kind(), sent.call()}]++;
    }
    auto* const kept = new std::string(sent.bytes);
    bp_rpc_message message = {};
    message.struct_size = sizeof(message);
    message.payload = kept->data();
    message.payload_size = kept->size();
    message.owner = kept;
    message.release = [](void* owner) { delete static_cast<std::string*>(owner); };
    end.host->received(end.host->ctx, sent.from, &message);
    const std::lock_guard lock(mutex_);
    --end.inside;
    left_.notify_all();
  }
  // Reports a broken connection.
  void lose(int32_t rank, int32_t peer) {
    bp_error why;
    bp_error_init(&why);
    bp_error_set(&why, BP_PEER_LOST, 0, peer, "a connection of this test broke");
    const bp_rpc_host& host = *ends_[static_cast<size_t>(rank)].host;
    host.lost(host.ctx, peer, &why);
  }
  // Reports that a message could not be sent.
  void fail(int32_t rank, int32_t to, uint64_t number) {
    bp_error why;
    bp_error_init(&why);
    bp_error_set(&why, BP_INVALID, 0, to, "a message of this test failed");
    const bp_rpc_host& host = *ends_[static_cast<size_t>(rank)].host;
    host.failed(host.ctx, to, number, &why);
  }
  int delivered(int32_t from, uint8_t kind, uint64_t call) {
    const std::lock_guard lock(mutex_);
    return count_[{from, kind, call}];
  }

 private:
  struct End {
    const bp_rpc_host* host = nullptr;
    bool closed = false;
    int inside = 0;
  };
  std::mutex mutex_;  // guards the fields below, except hosts
  std::condition_variable left_;
  std::array<End, 2> ends_;
  std::map<std::tuple<int32_t, uint8_t, uint64_t>, int> count_;
};

struct Agent {
  Hub* hub;
  int32_t rank;
};

int32_t init_to_fetch(const bp_backend*, const bp_init* given, bp_agent* agent, bp_error*) {
  static const bp_rpc_api table = {
      sizeof(bp_rpc_api),
      0,
      [](void* self, int32_t, const bp_rpc_message* message, int64_t, bp_error*) -> int32_t {
        const Agent& sender = *static_cast<Agent*>(self);
        sender.hub->send(sender.rank, *message);
        return BP_OK;
      },
      [](void* self, const bp_error*) { static_cast<Agent*>(self)->hub->leave(static_cast<Agent*>(self)->rank); },
      [](void* self) { delete static_cast<Agent*>(self); },
      [](void*, const char*) -> const void* { return nullptr; }};
  Hub* const hub = Hub::current();
  hub->join(given->rank, static_cast<const bp_rpc_host*>(given->host->extension(given->host->ctx, BP_EXT_RPC)));
  agent->kind = BP_KIND_RPC;
  agent->api = &table;
  agent->rank = given->rank;
  agent->world_size = given->world_size;
  agent->self = new Agent{hub, given->rank};
  return BP_OK;
}

// Set by the test to create the referenced value.
std::promise<void>* made = nullptr;

// Runs `body` on rank 0 of two, with a reference to that value at rank 1.
void with_reference(Hub* hub, const std::function<void(const rpc::RRef<int>&)>& body) {
  [[maybe_unused]] static const bool registered = [] {
    static bp_backend backend = {};
    backend.struct_size = sizeof(backend);
    backend.kinds = BP_KIND_RPC;
    backend.id = "hub";
    backend.version = "1";
    backend.summary = "an agent of this test";
    backend.init = init_to_fetch;
    register_backend(backend);
    rpc::register_function("made later", [] {
      made->get_future().wait();
      return 7;
    });
    return true;
  }();
  std::promise<void> promise;
  made = &promise;
  Hub::current() = hub;
  const Store store = Store::inproc();
  on_ranks(2, [&store, &body, &promise](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    options.backend = "hub";
    const auto worker = rpc::Worker::join(worker_name(rank), options);
    if (rank == 0) {
      const auto ref = worker.remote<int>(1, "made later");
      body(ref);
      promise.set_value();
      EXPECT_EQ(ref.to_here(), 7);
    }
    EXPECT_TRUE(worker.shutdown().empty());
  });
}

rpc::Future<int> start_fetching(const rpc::RRef<int>& ref) {
  const rpc::Worker worker = ref.worker();
  return rpc::Future<int>::start(std::shared_ptr<bp_rpc>(worker.get(), [worker](bp_rpc*) {}),
                                 [&ref](bp_rpc_done done, void* ctx, uint64_t* id, bp_error* err) {
                                   return bp_rref_fetch(ref.get(), BP_NO_TIMEOUT, done, ctx, id, err);
                                 });
}

void cancel_fetch(const rpc::RRef<int>& ref) {
  const rpc::Future<int> fetch = start_fetching(ref);
  fetch.cancel();
  EXPECT_EQ(failure_of([&fetch] { fetch.wait(); }), Status::kCancelled);
}

TEST(RpcFetchTest, ResendsACancelLostWithAConnection) {
  Hub hub;
  uint64_t fetch = 0;
  bool loses = true;
  hub.passes = [&fetch, &loses](const Sent& message) {
    if (message.kind() == kFetch && fetch == 0) fetch = message.call();
    return !(message.kind() == kCancel && loses);
  };
  with_reference(&hub, [&hub, &fetch, &loses](const rpc::RRef<int>& ref) {
    cancel_fetch(ref);
    EXPECT_EQ(hub.delivered(0, kFetch, fetch), 1);
    loses = false;
    hub.lose(0, 1);
    EXPECT_EQ(hub.delivered(0, kCancel, fetch), 1);
  });
  EXPECT_EQ(hub.delivered(1, kReply, fetch) + hub.delivered(1, kError, fetch), 0);
}

TEST(RpcFetchTest, KeepsACancelThatOvertakesItsFetch) {
  Hub hub;
  std::optional<Sent> fetch;
  hub.passes = [&fetch](const Sent& message) {
    if (message.kind() != kFetch || fetch) return true;
    fetch.emplace(message);
    return false;
  };
  with_reference(&hub, [&hub, &fetch](const rpc::RRef<int>& ref) {
    cancel_fetch(ref);
    ASSERT_TRUE(fetch);
    EXPECT_EQ(hub.delivered(0, kCancel, fetch->call()), 1);
    hub.deliver(*fetch);
  });
  ASSERT_TRUE(fetch);
  EXPECT_EQ(hub.delivered(1, kReply, fetch->call()) + hub.delivered(1, kError, fetch->call()), 0);
}

TEST(RpcFetchTest, IgnoresFailuresReportedForOtherWorkers) {
  Hub hub;
  uint64_t number = 0;
  hub.passes = [&number](const Sent& message) {
    if (message.kind() != kFetch || number != 0) return true;
    number = message.call();
    return false;
  };
  with_reference(&hub, [&hub, &number](const rpc::RRef<int>& ref) {
    const rpc::Future<int> fetch = start_fetching(ref);
    for (const int32_t other : {-1, 0, 2}) hub.fail(0, other, number);
    EXPECT_FALSE(fetch.done());
    hub.fail(0, 1, number);
    std::string text;
    EXPECT_EQ(failure_of([&fetch] { fetch.wait(); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("a message of this test failed"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace backplane::test
