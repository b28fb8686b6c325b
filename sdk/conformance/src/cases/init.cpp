// SPDX-License-Identifier: Apache-2.0
//
// Group `init`: how groups begin and end.
#include "init_groups.hpp"

namespace backplane::conformance {
namespace init {

void ring(Rank& rank, Agent& agent, uint32_t salt) {
  const int32_t next = (agent.rank() + 1) % agent.size();
  const int32_t previous = (agent.rank() + agent.size() - 1) % agent.size();
  const uint32_t sent = salt + static_cast<uint32_t>(agent.rank());
  const uint32_t expected = salt + static_cast<uint32_t>(previous);
  uint32_t received = 0;
  Pending sending = agent.isend(next, 11, &sent, sizeof sent);
  bp_op recv = recv_op(previous, 11, &received, sizeof received);
  recv.timeout_ns = rank.hang_limit(8 * kSecond);
  rank.require_ok(agent.run(recv), fmt::format("a recv from rank {}", previous));
  rank.require_ok(sending.finish(rank.hang_limit(8 * kSecond)), fmt::format("a send to rank {}", next));
  rank.require(received == expected, fmt::format("the number {} from rank {}", expected, previous),
               std::to_string(received));
}

void exchange_with_all(Rank& rank, Agent& agent, uint32_t salt) {
  const auto size = static_cast<size_t>(agent.size());
  const uint32_t mine = salt + static_cast<uint32_t>(agent.rank());
  std::vector<uint32_t> received(size);
  std::vector<Pending> pending;
  for (int32_t peer = 0; peer < agent.size(); ++peer) {
    pending.push_back(agent.irecv(peer, 12, &received[static_cast<size_t>(peer)], sizeof(uint32_t)));
    pending.push_back(agent.isend(peer, 12, &mine, sizeof mine));
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    rank.require_ok(pending[i].finish(rank.hang_limit(8 * kSecond)),
                    fmt::format("{}{}", i % 2 == 0 ? "a recv from rank " : "a send to rank ", i / 2));
  }
  for (uint32_t peer = 0; peer < size; ++peer) {
    rank.require(received[peer] == salt + peer, fmt::format("the number {} from rank {}", salt + peer, peer),
                 std::to_string(received[peer]));
  }
}

}  // namespace init

}  // namespace backplane::conformance
