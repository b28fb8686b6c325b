// SPDX-License-Identifier: Apache-2.0
//
// Prints what the busiest rank needs for each schedule, as a table of Markdown: rounds, bytes, connections and memory.
// The schedules are made and counted, not run.
//
//   scaling_table [WORLD_SIZE ...]
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "schedule/census.hpp"
#include "schedule/schedule.hpp"

namespace backplane::bench {
namespace {

using core::Algorithm;
using core::CollectiveSpec;
using core::testing::Census;

constexpr int32_t kRanksPerHost = 8;
constexpr uint64_t kElementBytes = 4;
constexpr uint64_t kWhole = 262'144;  // elements of operations on one buffer: 1 MiB
constexpr uint64_t kBlock = 2;        // elements of each rank's block: 8 bytes

struct Kind {
  uint32_t kind;
  const char* name;
  uint64_t count;
};

constexpr Kind kKinds[] = {
    {BP_BARRIER, "barrier", 0},
    {BP_BROADCAST, "broadcast", kWhole},
    {BP_REDUCE, "reduce", kWhole},
    {BP_ALL_REDUCE, "all_reduce", kWhole},
    {BP_GATHER, "gather", kBlock},
    {BP_SCATTER, "scatter", kBlock},
    {BP_ALL_GATHER, "all_gather", kBlock},
    {BP_REDUCE_SCATTER, "reduce_scatter", kBlock},
    {BP_ALL_TO_ALL, "all_to_all", kBlock},
    {BP_SCAN, "scan", kWhole},
};

// "1,000"
std::string number(uint64_t value) {
  std::string text = std::to_string(value);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

// "1,026 KiB"
std::string bytes(uint64_t value) {
  constexpr uint64_t kMost = 10'000;
  if (value < kMost) return number(value) + " B";
  return value < kMost << 10 ? number(value >> 10) + " KiB" : number(value >> 20) + " MiB";
}

struct Column {
  const char* name;
  uint64_t Census::*field;
  std::string (*text)(uint64_t value);
};

constexpr Column kColumns[] = {{"rounds", &Census::rounds, number},
                               {"bytes", &Census::bytes, bytes},
                               {"connections", &Census::connections, number},
                               {"memory", &Census::memory, bytes}};

Census count(const Kind& kind, Algorithm algorithm, int32_t world_size) {
  const core::Topology topology = core::testing::hosts_of(world_size, kRanksPerHost);
  CollectiveSpec spec;
  spec.kind = kind.kind;
  spec.world_size = world_size;
  spec.count = kind.count;
  spec.element_size = kElementBytes;
  if (algorithm == Algorithm::kHierarchical) spec.topology = &topology;
  return core::testing::take_census(algorithm, spec, core::testing::sample_of_ranks(world_size));
}

void print_row(const Kind& kind, Algorithm algorithm, const std::vector<int32_t>& worlds) {
  std::vector<Census> found;
  for (const int32_t world_size : worlds) found.push_back(count(kind, algorithm, world_size));
  std::cout << "| " << kind.name << " | " << core::name_of(algorithm);
  for (const Column& column : kColumns) {
    std::string separator = " | ";
    for (const Census& census : found) {
      std::cout << separator << column.text(census.*column.field);
      separator = " / ";
    }
  }
  std::cout << " |\n";
}

int run(const std::vector<int32_t>& worlds) {
  std::cout << "| operation | schedule";
  for (const Column& column : kColumns) std::cout << " | " << column.name;
  std::cout << " |\n|---|---|---|---|---|---|\n";
  for (const Kind& kind : kKinds) {
    std::vector<Algorithm> algorithms = core::algorithms_for(kind.kind);
    if (core::has_hierarchical(kind.kind)) algorithms.push_back(Algorithm::kHierarchical);
    for (const Algorithm algorithm : algorithms) print_row(kind, algorithm, worlds);
  }
  return std::cout.good() ? 0 : 1;
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) {
  std::vector<int32_t> worlds;
  for (int i = 1; i < argc; ++i) worlds.push_back(std::atoi(argv[i]));
  if (worlds.empty()) worlds = {1000, 100'000};
  for (const int32_t world_size : worlds) {
    if (world_size > 1) continue;
    std::cerr << "usage: scaling_table [WORLD_SIZE ...]  (2 ranks or more)\n";
    return 2;
  }
  return backplane::bench::run(worlds);
}
