// SPDX-License-Identifier: Apache-2.0
//
// Features and defects of torch.distributed.rpc's backend registry and of its two agents, and the tests of each. Some
// are in this file.
//
//   the five calls, BackendValue's pair of handlers           backend_type_test.cpp
//   already registered; options of another backend's type;
//   rank and world_size that do not match the group           backend_type_test.cpp, rpc/join_test.cpp
//   store of the wrong type                                   backend_type_test.cpp AStoreOfTheWrongTypeIsRefused
//   members that go stale when another one is registered      backend_type_test.cpp RegisteringTwiceIsAnError
//   options have the rendezvous; agents of the program        rpc/join_test.cpp
//   unknown keywords are ignored                              backend_type_test.cpp UnknownKeywordsAreNamed, and here
//   names: form, uniqueness, errors on all workers            rpc/join_test.cpp
//   rpc_sync, rpc_async, errors with the remote type and text,
//   timeouts and cancels that reach the callee, metrics,
//   all_gather, graceful shutdown                             rpc/calls_test.cpp, rpc/join_test.cpp
//   remote, RRef, forks, reordered messages                   rpc/references_test.cpp
//   nested calls exhaust the pool                             rpc/calls_test.cpp NestDeeperThanTheThreadPool
//   a failed init leaves other ranks hanging                  rpc/refusal_test.cpp, join_test.cpp, mismatched_test.cpp
//   a broken pipe is never replaced                           rpc/cuts_test.cpp
//   uv's end of file is not typed                             plugins/tensorpipe/errors_test.cpp
//   device maps: names, one-to-one, ranges, reverse           plugins/tensorpipe/device_maps_test.cpp
#include <array>
#include <atomic>

#include "backplane/abi/ext/rpc.h"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

class ParityTest : public testing::Test {
 protected:
  static bool has(const char* name) { return backend_registered(name); }
  static BackendOptions options_of(const char* name, const Keywords& keywords = {}) {
    return construct_rpc_backend_options(backend_type(name), Timeout(BP_DEFAULT_RPC_TIMEOUT_NS), "env://", keywords);
  }
};

// torch: DEFAULT_NUM_SEND_RECV_THREADS is 4, DEFAULT_NUM_WORKER_THREADS 16.
TEST_F(ParityTest, Defaults) {
  EXPECT_EQ(options_of("PROCESS_GROUP")["num_send_recv_threads"], "4");
  for (const char* agent : {"PROCESS_GROUP", "TENSORPIPE", "ZMQ"}) {
    if (!has(agent)) continue;
    EXPECT_EQ(options_of(agent)["num_worker_threads"], "16") << agent;
  }
}

// torch: DEFAULT_RPC_TIMEOUT_SEC is 60, for options and for calls without a timeout. This agent sends nothing and
// records the timeout of each call.
TEST_F(ParityTest, CallsHaveAMinute) {
  static std::array<std::atomic<int64_t>, 2> given_ns = {};  // to each rank's agent
  static const bp_rpc_api table = {
      sizeof(bp_rpc_api),
      0,
      [](void* self, int32_t, const bp_rpc_message* message, int64_t timeout_ns, bp_error* err) -> int32_t {
        message->release(message->owner);
        *static_cast<std::atomic<int64_t>*>(self) = timeout_ns;
        return bp_error_set(err, BP_UNSUPPORTED, 0, -1, "this agent sends nothing");
      },
      [](void*, const bp_error*) {},
      [](void*) {},
      [](void*, const char*) -> const void* { return nullptr; }};
  static std::atomic<int64_t> told_ns = 0;  // to the handler of options
  BackendHandlers handlers;
  handlers.kinds = BP_KIND_RPC;
  handlers.construct_options = [](Timeout rpc_timeout, const std::string&, const Keywords&) {
    told_ns = rpc_timeout.count();
    return std::any();
  };
  handlers.init = [](const bp_init& init, const std::any&, bp_agent* agent) {
    agent->kind = BP_KIND_RPC;
    agent->api = &table;
    agent->self = &given_ns[static_cast<size_t>(init.rank)];
    agent->rank = init.rank;
    agent->world_size = init.world_size;
  };
  static constexpr int64_t kMinute = 60'000'000'000;
  construct_rpc_backend_options(register_backend("sends_nothing", handlers));
  EXPECT_EQ(told_ns, kMinute);
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    options.backend = "sends_nothing";
    const auto worker = rpc::Worker::join(worker_name(rank), options);
    if (rank == 0) {
      std::string text;
      EXPECT_EQ(failure_of([&worker] { worker.rpc_sync<int>(1, "anything"); }, &text), Status::kUnsupported);
      EXPECT_NE(text.find("this agent sends nothing"), std::string::npos) << text;
      EXPECT_EQ(given_ns[0], kMinute);
    }
    worker.shutdown();
  });
}

// torch's handler of TENSORPIPE's options drops device_maps, so that they never reach the agent, and takes _transports
// and _channels.
TEST_F(ParityTest, TensorPipesOptionsReachItsAgent) {
  if (!has("TENSORPIPE")) GTEST_SKIP() << "it is not built";
  const BackendOptions made = options_of("TENSORPIPE", {{"device_maps", "you:0=0"}, {"_transports", "uv"}});
  EXPECT_EQ(made["device_maps"], "you:0=0");
  EXPECT_EQ(made["transports"], "uv");
  const auto given_twice = [] { options_of("TENSORPIPE", {{"_transports", "uv"}, {"transports", "shm"}}); };
  std::string text;
  EXPECT_EQ(failure_of(given_twice, &text), Status::kInvalid);
  EXPECT_EQ(text, "option 'transports' of tensorpipe is given twice; keep one");
  const auto misspelt = [] { options_of("TENSORPIPE", {{"device_map", "you:0=0"}}); };
  EXPECT_EQ(failure_of(misspelt, &text), Status::kInvalid);
  EXPECT_NE(text.find("Did you mean 'device_maps'?"), std::string::npos) << text;
  rpc::RpcOptions options = rpc_options("inproc", Store::inproc(), 0, 1);
  options.backend.clear();
  options.options = made;
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("maps to worker you, which does not exist"), std::string::npos) << text;
}

// torch fails on an empty map, because it computes the minimum of no devices.
TEST_F(ParityTest, AnEmptyDeviceMapIsNone) {
  if (!has("TENSORPIPE")) GTEST_SKIP() << "it is not built";
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    rpc::RpcOptions options = rpc_options("inproc", store, rank, 2);
    options.backend = "tensorpipe?device_maps=" + worker_name(1 - rank) + ":";
    const auto worker = rpc::Worker::join(worker_name(rank), options);
    EXPECT_EQ(worker.world_size(), 2);
    worker.shutdown();
  });
}

// torch's PROCESS_GROUP needs tags and any-source receives. Over a backend without them it fails at the first call.
TEST_F(ParityTest, ProcessGroupNeedsTagsAndAnySource) {
  const bp_backend& plain = backend_type("self").descriptor();
  BackendHandlers handlers;  // as `self`, but with no flags
  for (uint32_t i = 0; i < plain.capability_count; ++i) handlers.capabilities.push_back(*plain.capabilities[i]);
  handlers.init = [](const bp_init& init, const std::any&, bp_agent* agent) {
    const bp_backend* const self = &backend_type("self").descriptor();
    bp_error err;
    bp_error_init(&err);
    if (self->init(self, &init, agent, &err) != BP_OK) throw std::runtime_error(err.text);
  };
  register_backend("untagged", handlers);
  rpc::RpcOptions options = rpc_options("untagged", Store::inproc(), 0, 1);
  std::string text;
  EXPECT_EQ(failure_of([&options] { rpc::Worker::join("me", options); }, &text), Status::kUnsupported);
  EXPECT_NE(text.find("process_group needs a group whose backend matches tags and receives from anyone, which untagged "
                      "does not"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace backplane::test
