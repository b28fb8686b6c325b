// SPDX-License-Identifier: Apache-2.0
#include "process_traffic.hpp"

#include <algorithm>

namespace backplane::conformance {
namespace {

struct Message {
  int32_t peer = -1;
  std::vector<char> bytes;
  Pending operation = {};
};

void compare(Rank& rank, const Message& message, int32_t receiver, uint64_t tag) {
  const std::vector<char> right = payload(message.peer, receiver, tag, message.bytes.size());
  const auto wrong = std::mismatch(right.begin(), right.end(), message.bytes.begin());
  if (wrong.first == right.end()) return;
  rank.fail(fmt::format("the bytes that rank {} sent (tag {}, {} bytes)", message.peer, tag, right.size()),
            fmt::format("byte {} is {}, not {}", wrong.first - right.begin(), static_cast<int>(*wrong.second),
                        static_cast<int>(*wrong.first)));
}

void trade(Rank& rank, Agent& agent, const std::vector<int32_t>& to, const std::vector<int32_t>& from, uint64_t tag,
           size_t bytes) {
  std::vector<Message> inbound;
  std::vector<Message> outbound;
  for (const int32_t peer : from) inbound.push_back({peer, std::vector<char>(bytes)});
  for (const int32_t peer : to) outbound.push_back({peer, payload(agent.rank(), peer, tag, bytes)});
  for (Message& message : inbound) message.operation = agent.irecv(message.peer, tag, message.bytes.data(), bytes);
  for (Message& message : outbound) message.operation = agent.isend(message.peer, tag, message.bytes.data(), bytes);
  for (Message& message : inbound) {
    rank.require_ok(message.operation.finish(rank.hang_limit(10 * kSecond)),
                    fmt::format("a recv of {} bytes from rank {}", bytes, message.peer));
    compare(rank, message, agent.rank(), tag);
  }
  for (Message& message : outbound) {
    rank.require_ok(message.operation.finish(rank.hang_limit(10 * kSecond)),
                    fmt::format("a send of {} bytes to rank {}", bytes, message.peer));
  }
}

}  // namespace

std::vector<char> payload(int32_t sender, int32_t receiver, uint64_t tag, size_t bytes) {
  std::vector<char> data(bytes);
  uint64_t state = (tag * 1'000'003 + static_cast<uint64_t>(sender)) * 1'000'003 + static_cast<uint64_t>(receiver) + 1;
  for (char& byte : data) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    byte = static_cast<char>(state >> 56);
  }
  return data;
}

void exchange(Rank& rank, Agent& agent, const std::vector<int32_t>& peers, uint64_t tag, size_t bytes) {
  std::vector<int32_t> others;
  for (const int32_t peer : peers) {
    if (peer != agent.rank() || peers.size() == 1) others.push_back(peer);
  }
  trade(rank, agent, others, others, tag, bytes);
}

void exchange(Rank& rank, Agent& agent, uint64_t tag, size_t bytes) {
  std::vector<int32_t> all;
  for (int32_t peer = 0; peer < agent.size(); ++peer) all.push_back(peer);
  exchange(rank, agent, all, tag, bytes);
}

void exchange_in_new_group(Rank& rank) {
  rank.barrier();
  Plan plan;
  plan.space = "after";
  const auto agent = rank.open(plan);
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
}

void pass_round(Rank& rank, Agent& agent, uint64_t tag, size_t bytes) {
  trade(rank, agent, {(agent.rank() + 1) % agent.size()}, {(agent.rank() + agent.size() - 1) % agent.size()}, tag,
        bytes);
}

}  // namespace backplane::conformance
