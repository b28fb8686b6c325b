// SPDX-License-Identifier: Apache-2.0
#include "schedule/census.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace backplane::core::testing {
namespace {

constexpr int32_t kFewRanks = 256;

bool is_message(const Step& step) { return step.kind == Step::Kind::kSend || step.kind == Step::Kind::kRecv; }

Schedule schedule_of(Algorithm algorithm, CollectiveSpec spec, int32_t rank) {
  spec.rank = rank;
  return make_schedule(algorithm, spec);
}

}  // namespace

std::set<int32_t> peers_of(const Schedule& schedule) {
  std::set<int32_t> peers;
  for (const Step& step : schedule.steps) {
    if (is_message(step)) peers.insert(step.peer);
  }
  return peers;
}

Census take_census(Algorithm algorithm, const CollectiveSpec& spec, const std::vector<int32_t>& ranks) {
  Census most;
  for (const int32_t rank : ranks) {
    const Schedule schedule = schedule_of(algorithm, spec, rank);
    uint64_t sent = 0;
    uint64_t received = 0;
    for (const Step& step : schedule.steps) {
      if (step.kind == Step::Kind::kSend) sent += step.source.count;
      if (step.kind == Step::Kind::kRecv) received += step.target.count;
    }
    const uint64_t own_size = schedule.steps.size() * sizeof(Step) + schedule.round_ends.size() * sizeof(uint32_t);
    most.rounds = std::max<uint64_t>(most.rounds, schedule.round_ends.size());
    most.bytes = std::max(most.bytes, std::max(sent, received) * spec.element_size);
    most.connections = std::max<uint64_t>(most.connections, peers_of(schedule).size());
    most.memory = std::max(most.memory, schedule.scratch_count * spec.element_size + own_size);
  }
  return most;
}

std::vector<int32_t> all_ranks(int32_t world_size) {
  std::vector<int32_t> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int32_t> sample_of_ranks(int32_t world_size) {
  if (world_size <= kFewRanks) return all_ranks(world_size);
  std::set<int32_t> ranks;
  const auto add_around = [&ranks, world_size](int64_t rank) {
    for (const int64_t near : {rank - 1, rank, rank + 1}) {
      if (near >= 0 && near < world_size) ranks.insert(static_cast<int32_t>(near));
    }
  };
  add_around(0);
  add_around(world_size - 1);
  add_around(world_size / 2);
  add_around(world_size / 3);
  for (int64_t power = 16; power < world_size; power *= 16) add_around(power);
  return {ranks.begin(), ranks.end()};
}

bool all_messages_match(Algorithm algorithm, const CollectiveSpec& spec) {
  // By sender and receiver: the sizes that were sent and not yet received, or the reverse. Of one rank, the sends to a
  // peer come in the order of its steps.
  std::map<std::pair<int32_t, int32_t>, std::vector<uint64_t>> sent;
  std::map<std::pair<int32_t, int32_t>, std::vector<uint64_t>> received;
  for (int32_t rank = 0; rank < spec.world_size; ++rank) {
    for (const Step& step : schedule_of(algorithm, spec, rank).steps) {
      if (step.kind == Step::Kind::kSend) sent[{rank, step.peer}].push_back(step.source.count);
      if (step.kind == Step::Kind::kRecv) received[{step.peer, rank}].push_back(step.target.count);
    }
  }
  return sent == received;
}

Topology hosts_of(int32_t world_size, int32_t ranks_per_host) {
  std::vector<int32_t> hosts = all_ranks(world_size);
  for (int32_t& host : hosts) host /= ranks_per_host;
  return {{hosts}};
}

}  // namespace backplane::core::testing
