// SPDX-License-Identifier: Apache-2.0
//
// What is to be measured, as `backplane bench` hands it to the programs that measure: its own ranks and the peers'
// drivers (tools/bench/peers). Nothing here needs more than the standard library, so that a driver is one small
// program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace backplane::bench {

// What a target can do. In the order of kTests, which begins with the collectives.
enum class Op {
  kBarrier,
  kBroadcast,
  kReduce,
  kAllReduce,
  kGather,
  kScatter,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSend,
  kRecv
};

// What is measured: each collective, and three that are made of several operations.
//   send_recv   half a round trip between the ranks 2i and 2i+1, all pairs at once
//   bandwidth   messages from 2i to 2i+1, kWindow of them under way, until a short answer; per message
//   overlap     an asynchronous all_reduce with as much computing between start and end as it takes by itself
enum class Test {
  kBarrier,
  kBroadcast,
  kReduce,
  kAllReduce,
  kGather,
  kScatter,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSendRecv,
  kBandwidth,
  kOverlap
};
inline constexpr int kTests = 12;

const char* name_of(Test test);
// Throws std::invalid_argument, listing the names.
Test test_of(const std::string& name);

// `bytes` is N of the process group's documentation, in bytes of f32: what a rank gives to, or gets from, each of the
// others. 0 for a barrier.
struct Row {
  Test test = Test::kBarrier;
  uint64_t bytes = 0;
};

// Messages under way in `bandwidth`: 64 as in OSU's osu_bw, fewer if they were more than 256 MiB together.
uint64_t window_of(uint64_t bytes);

struct Task {
  std::string results;  // a file to append lines to (results.hpp)
  double seconds = 1;   // for each row and target
  bool check = false;   // of results, before each row is measured
  bool pin = false;     // rank i's thread to the i-th core
  bool progress = false;
  bool registered = false;  // Backplane's ranks: each backend once more, with buffers that it has allocated
  int devices = 0;          // not 0: Backplane's ranks have their buffers on CUDA devices, rank i on i modulo this
  std::vector<Row> rows;
};

// A task as the first four arguments of a benchmark program, and back. Further arguments are the program's. Throws
// std::invalid_argument.
std::vector<std::string> to_arguments(const Task& task);
Task to_task(const std::vector<std::string>& arguments);
inline constexpr int kTaskArguments = 4;

// NCCL's definitions (nccl-tests, PERFORMANCE.md): the algorithm bandwidth is the data of the operation by its time;
// times bus_factor it is what goes through the slowest link of an optimal algorithm, comparable between operations and
// numbers of ranks.
double data_of(Row row, int ranks);  // bytes
double bus_factor(Test test, int ranks);

}  // namespace backplane::bench
