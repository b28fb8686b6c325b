// SPDX-License-Identifier: Apache-2.0
//
// The core refuses agents with wrong or incomplete tables.
#include <cstddef>
#include <functional>

#include "backplane/abi/ext/rpc.h"
#include "backplane/abi/plugin.h"
#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

std::string ends;  // how the core ended the agent

bp_rpc_api right_table() {
  bp_rpc_api api = {};
  api.struct_size = sizeof(bp_rpc_api);
  api.send = [](void*, int32_t, const bp_rpc_message* message, int64_t, bp_error*) -> int32_t {
    message->release(message->owner);
    return BP_UNSUPPORTED;
  };
  api.abort = [](void*, const bp_error*) { ends += "aborted "; };
  api.destroy = [](void*) { ends += "destroyed "; };
  api.extension = [](void*, const char*) -> const void* { return nullptr; };
  return api;
}
bp_rpc_api table = right_table();
std::function<void(bp_agent*)> lie;

int32_t init(const bp_backend*, const bp_init* given, bp_agent* agent, bp_error*) {
  agent->kind = BP_KIND_RPC;
  agent->api = &table;
  agent->rank = given->rank;
  agent->world_size = given->world_size;
  lie(agent);
  return BP_OK;
}

// The error of a worker that joins with an agent modified by `change`.
std::string refusal_of(const std::function<void(bp_agent*)>& change) {
  static const bp_backend* const liar = [] {
    static bp_backend backend = {};
    backend.struct_size = sizeof(bp_backend);
    backend.kinds = BP_KIND_RPC;
    backend.id = "faulty";
    backend.version = "1";
    backend.summary = "an agent of this test";
    backend.init = init;
    register_backend(backend);
    return &backend;
  }();
  lie = change;
  ends.clear();
  rpc::RpcOptions options = rpc_options("self", Store::inproc(), 0, 1);
  options.backend = liar->id;
  std::string text;
  failure_of([&options] { rpc::Worker::join("me", options); }, &text);
  return text;
}

TEST(RpcAgentsTest, RefusesAnAgentOfAnotherRankOrWorldSize) {
  EXPECT_EQ(refusal_of([](bp_agent* agent) { ++agent->rank; }),
            "rank 0 cannot join: rank argument 0 doesn't match pg rank 1");
  EXPECT_EQ(ends, "aborted destroyed ");
  EXPECT_EQ(refusal_of([](bp_agent* agent) { ++agent->world_size; }),
            "rank 0 cannot join: world_size argument 1 doesn't match pg size 2");
  EXPECT_EQ(ends, "aborted destroyed ");
}

TEST(RpcAgentsTest, RefusesAnIncompleteAgentAndDestroysItIfPossible) {
  static bp_process_group_api group = {};
  group.struct_size = sizeof(group);
  group.abort = right_table().abort;
  group.destroy = right_table().destroy;
  const std::vector<std::function<void(bp_agent*)>> endable = {
      [](bp_agent* agent) {
        agent->kind = BP_KIND_PROCESS_GROUP;
        agent->api = &group;
      },
      [](bp_agent*) { table.struct_size = offsetof(bp_rpc_api, extension); }, [](bp_agent*) { table.send = nullptr; },
      [](bp_agent*) { table.extension = nullptr; }};
  for (const auto& change : endable) {
    table = right_table();
    EXPECT_EQ(refusal_of(change), "rank 0 cannot join: backend faulty did not return a complete RPC agent");
    EXPECT_EQ(ends, "aborted destroyed ");
  }
  const std::vector<std::function<void(bp_agent*)>> all = {
      [](bp_agent* agent) { agent->api = nullptr; },
      [](bp_agent*) { table.struct_size = offsetof(bp_rpc_api, destroy); }, [](bp_agent*) { table.abort = nullptr; },
      [](bp_agent*) { table.destroy = nullptr; }};
  for (const auto& change : all) {
    table = right_table();
    EXPECT_EQ(refusal_of(change), "rank 0 cannot join: backend faulty did not return a complete RPC agent");
    EXPECT_EQ(ends, "");  // its table has no function to call
  }
  table = right_table();
}

}  // namespace
}  // namespace backplane::test
