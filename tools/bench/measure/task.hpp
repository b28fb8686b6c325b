// SPDX-License-Identifier: Apache-2.0
//
// The task that `backplane bench` passes to measuring programs: its ranks and the drivers of peers (tools/bench/peers).
// Depends on the standard library only, to keep drivers small.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace backplane::bench {

// Operations of a target. The collectives come first, in the order of Test.
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

// Measured tests: each collective, and three tests of several operations.
//   send_recv   half a round trip between the ranks 2i and 2i+1, all pairs at once
//   bandwidth   messages from 2i to 2i+1, window_of() of them in flight, until a short reply; per message
//   overlap     an asynchronous all_reduce with a computation as long as the all_reduce alone between start and end
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

// `bytes` is N of the process group's documentation in bytes: the f32 data that a rank sends to, or receives from, each
// other rank. 0 for a barrier.
struct Row {
  Test test = Test::kBarrier;
  uint64_t bytes = 0;
};

// Messages in flight in `bandwidth`: 64 as in OSU's osu_bw, fewer if 64 exceed 256 MiB together.
uint64_t window_of(uint64_t bytes);

struct Task {
  std::string results;  // the file to append to (results.hpp)
  double seconds = 1;   // for each row and target
  bool check = false;   // check results before each row
  bool pin = false;     // rank i's thread to the i-th core
  bool progress = false;
  bool registered = false;  // measure each backend of Backplane also with buffers that it has allocated
  int devices = 0;  // not 0: buffers of Backplane's ranks are on CUDA devices, those of rank i on device i modulo this
  std::vector<Row> rows;
};

// Converts a task to the first four arguments of a measuring program, and back; further arguments are the program's
// own. Throws std::invalid_argument.
std::vector<std::string> to_arguments(const Task& task);
Task to_task(const std::vector<std::string>& arguments);
inline constexpr int kTaskArguments = 4;

// The definitions of nccl-tests (PERFORMANCE.md): the algorithm bandwidth is the operation's data divided by its time.
// Multiplied by bus_factor it is the traffic of the slowest link in an optimal algorithm, comparable between operations
// and numbers of ranks.
double data_of(Row row, int ranks);  // bytes
double bus_factor(Test test, int ranks);

}  // namespace backplane::bench
