// SPDX-License-Identifier: Apache-2.0
//
// Helpers for tests of the plugin gloo: groups of agents on threads, operations in short form.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/agents.hpp"

namespace backplane::test {

inline const bp_backend& gloo() {
  static const bp_backend& backend = open_backend(BACKPLANE_GLOO_PLUGIN, "gloo");
  return backend;
}

// Starts a group of `world_size` ranks on threads and runs body(agent, rank) on each once all have started: a rank that
// leaves or aborts would end the start of another.
template <typename Body>
void on_group(int32_t world_size, Body body, const std::map<std::string, std::string>& options = {}) {
  MemoryHost host;
  std::barrier started(world_size);
  on_ranks(world_size, [&host, &body, &options, &started, world_size](int32_t rank) {
    std::optional<Agent> agent;
    try {
      agent.emplace(gloo(), host.table(), rank, world_size, options);
    } catch (...) {
      started.arrive_and_drop();
      throw;
    }
    started.arrive_and_wait();
    body(*agent, rank);
  });
}

inline bp_buffer span(void* data, uint64_t count) { return {data, count, BP_HOST, 0}; }
template <typename T>
bp_buffer span(std::vector<T>& data) {
  return span(data.data(), data.size());
}

inline bp_op send_op(int32_t peer, uint64_t tag, void* data, uint64_t bytes, uint64_t flags = BP_OP_SYNC) {
  bp_op op = make_op(BP_SEND);
  op.peer = peer;
  op.tag = tag;
  op.flags = flags;
  op.input = span(data, bytes);
  return op;
}
inline bp_op recv_op(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result = nullptr,
                     uint64_t flags = BP_OP_SYNC) {
  bp_op op = make_op(BP_RECV);
  op.peer = peer;
  op.tag = tag;
  op.flags = flags;
  op.output = span(data, bytes);
  op.result = result;
  return op;
}

inline bp_result fresh_result() { return {sizeof(bp_result), -1, 0, 0}; }
inline bp_error fresh_error() {
  bp_error err;
  bp_error_init(&err);
  return err;
}

// Runs the operation and expects success.
inline void expect_done(Agent& agent, const bp_op& op) {
  bp_error err = fresh_error();
  EXPECT_EQ(agent.run(op, &err), BP_OK) << err.text;
}

// Submits without BP_OP_SYNC and expects success. Returns null if done at once.
inline bp_work* started(Agent& agent, bp_op op) {
  op.flags = 0;
  bp_work* work = nullptr;
  bp_error err = fresh_error();
  EXPECT_EQ(agent.api().submit(agent.self(), &op, &work, &err), BP_OK) << err.text;
  return work;
}
inline int32_t finished(Agent& agent, bp_work* work, bp_error* err = nullptr,
                        int64_t timeout_ns = INT64_C(20'000'000'000)) {
  if (work == nullptr) return BP_OK;
  const int32_t status = agent.api().work_wait(agent.self(), work, timeout_ns, err);
  if (status != BP_AGAIN) agent.api().work_release(agent.self(), work);
  return status;
}

}  // namespace backplane::test
