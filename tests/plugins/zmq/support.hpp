// SPDX-License-Identifier: Apache-2.0
//
// Groups of zmq ranks on threads of this process, and their messages.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/agents.hpp"
#include "support/optimized.hpp"

namespace backplane::test {

using Bytes = std::vector<uint8_t>;
using OptionMap = std::map<std::string, std::string>;

constexpr int64_t kSecond = 1'000'000'000;

// The backend under test. `normalised` replaces durations of the schema by nanoseconds, as the core does.
inline const bp_backend& zmq_backend(const std::string& id = "zmq") { return open_backend(ZMQ_PLUGIN, id); }
inline OptionMap normalised(OptionMap options) {
  options.try_emplace("linger", std::to_string(3 * kSecond));
  options.try_emplace("connect_timeout", std::to_string(30 * kSecond));
  options.try_emplace("heartbeat", "0");
  return options;
}

// Bytes that depend on their position and on `seed`.
BACKPLANE_TEST_OPTIMIZED inline void write_pattern(uint8_t* bytes, size_t size, uint32_t seed) {
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 131 + i / 251 + seed * 17);
}
inline Bytes pattern(size_t size, uint32_t seed) {
  Bytes bytes(size);
  write_pattern(bytes.data(), size, seed);
  return bytes;
}

// A value of the store. Waits up to 20 s for it, then returns "".
inline std::string stored(MemoryHost& host, const std::string& key) {
  char value[256];
  uint64_t size = 0;
  const bp_host& table = *host.table();
  if (table.store_get(table.ctx, key.c_str(), value, sizeof value, &size, 20 * kSecond, nullptr) != BP_OK) return "";
  return {value, size};
}

// A word of a rank's entry in the store: 0 is its TCP endpoint, 1 its local one, 2 its key; "-" for a missing one.
inline std::string word(const std::string& line, int index) {
  std::istringstream words(line);
  std::string found;
  for (int i = 0; i <= index; ++i) words >> found;
  return found;
}

// The error with which a rank fails to start; "" if it starts.
inline std::string start_failure(MemoryHost& host, int32_t rank, int32_t world_size, const OptionMap& options = {},
                                 int64_t timeout_ns = 20 * kSecond) {
  try {
    const Agent agent(zmq_backend(), host.table(), rank, world_size, normalised(options), timeout_ns);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

struct Received {
  int32_t status = BP_OK;
  std::string text;
  int32_t peer_rank = -1;
  int32_t source = -2;
  uint64_t size = 0;
  Bytes bytes;  // the whole receive buffer
};

// One rank, with blocking calls.
class Rank {
 public:
  Rank(MemoryHost& host, int32_t rank, int32_t world_size, const OptionMap& options = {})
      : rank_(rank), agent_(zmq_backend(), host.table(), rank, world_size, normalised(options)) {}

  int32_t rank() const { return rank_; }
  Agent& agent() { return agent_; }

  int32_t send(int32_t peer, uint64_t tag, const Bytes& bytes, uint64_t flags = BP_OP_SYNC,
               int64_t timeout_ns = 20 * kSecond) {
    bp_error err;
    bp_error_init(&err);
    bp_op op = make_send(peer, tag, bytes);
    op.flags = flags;
    op.timeout_ns = timeout_ns;
    const int32_t status = agent_.run(op, &err);
    error_ = err.text;
    return status;
  }
  Received recv(int32_t peer, uint64_t tag, size_t capacity, uint64_t flags = BP_OP_SYNC,
                int64_t timeout_ns = 20 * kSecond) {
    Received received;
    received.bytes.resize(capacity);
    bp_error err;
    bp_error_init(&err);
    bp_result result = {sizeof(bp_result), -2, 0, 0};
    bp_op op = make_recv(peer, tag, received.bytes, &result);
    op.flags = flags;
    op.timeout_ns = timeout_ns;
    received.status = agent_.run(op, &err);
    received.text = err.text;
    received.peer_rank = err.peer_rank;
    received.source = result.source;
    received.size = result.bytes;
    return received;
  }
  const std::string& error() const { return error_; }

  static bp_op make_send(int32_t peer, uint64_t tag, const Bytes& bytes) {
    bp_op op = make_op(BP_SEND);
    op.peer = peer;
    op.tag = tag;
    op.input = {const_cast<uint8_t*>(bytes.data()), bytes.size(), BP_HOST, 0};
    return op;
  }
  static bp_op make_recv(int32_t peer, uint64_t tag, Bytes& bytes, bp_result* result = nullptr) {
    bp_op op = make_op(BP_RECV);
    op.peer = peer;
    op.tag = tag;
    op.output = {bytes.data(), bytes.size(), BP_HOST, 0};
    op.result = result;
    return op;
  }

  // An operation in flight; null if it ended within submit.
  bp_work* start(const bp_op& op) {
    bp_work* work = nullptr;
    bp_error err;
    bp_error_init(&err);
    if (agent_.api().submit(agent_.self(), &op, &work, &err) != BP_OK) throw std::runtime_error(err.text);
    return work;
  }
  int32_t finish(bp_work* work, int64_t timeout_ns = 20 * kSecond, bp_error* err = nullptr) {
    if (work == nullptr) return BP_OK;
    const int32_t status = agent_.api().work_wait(agent_.self(), work, timeout_ns, err);
    if (status != BP_AGAIN) agent_.api().work_release(agent_.self(), work);
    return status;
  }
  void abort(int32_t status, const char* text, int32_t peer_rank = -1) {
    bp_error why;
    bp_error_init(&why);
    bp_error_set(&why, status, 0, peer_rank, text);
    agent_.api().abort(agent_.self(), &why);
  }

 private:
  const int32_t rank_;
  Agent agent_;
  std::string error_;
};

// Runs body on one thread per rank. The ranks are destroyed at the end.
inline void in_world(int32_t world_size, const std::function<void(Rank&)>& body, const OptionMap& options = {}) {
  MemoryHost host;
  on_ranks(world_size, [&host, world_size, &body, &options](int32_t number) {
    Rank rank(host, number, world_size, options);
    body(rank);
  });
}

// Sends messages of several sizes from rank 0 to rank 1 and back.
inline void exchange_messages(Rank& zero, Rank& one, uint32_t round) {
  for (const size_t size : {0, 10, 200000}) {
    const Bytes bytes = pattern(size, round);
    bp_work* const sending = zero.start(Rank::make_send(1, 1, bytes));
    EXPECT_EQ(one.recv(0, 1, size).bytes, bytes);
    EXPECT_EQ(zero.finish(sending), BP_OK);
    bp_work* const replying = one.start(Rank::make_send(0, 1, bytes));
    EXPECT_EQ(zero.recv(BP_ANY_SOURCE, 1, size).bytes, bytes);
    EXPECT_EQ(one.finish(replying), BP_OK);
  }
}

}  // namespace backplane::test
