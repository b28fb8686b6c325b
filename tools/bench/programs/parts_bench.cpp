// SPDX-License-Identifier: Apache-2.0
//
// The parts of the core's overhead per operation; core_bench measures the whole.
#include <benchmark/benchmark.h>

#include "group/operation.hpp"
#include "group/recorder.hpp"

namespace backplane::core {
namespace {

float value = 1.0F;

bp_op all_reduce() {
  bp_op op;
  bp_op_init(&op, BP_ALL_REDUCE);
  op.dtype = BP_F32;
  op.input = op.output = {&value, 1, BP_HOST, 0};
  return op;
}

void read_clock(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(monotonic_ns());
}
BENCHMARK(read_clock);

void record_operation(benchmark::State& state) {
  static Recorder recorder;
  const bp_op op = all_reduce();
  uint64_t seq = 0;
  for (auto _ : state) recorder.finish(recorder.start(op, ++seq, 1, -1), BP_OK);
  const auto entries = recorder.entries();
  if (entries.empty() || entries.back().seq != seq) state.SkipWithError("the last operation was not recorded");
}
BENCHMARK(record_operation);

void validate_operation(benchmark::State& state) {
  const bp_op op = all_reduce();
  for (auto _ : state) {
    Operation operation;
    validate(op, 0, 2, &operation);
    benchmark::DoNotOptimize(operation.count);
  }
  Operation operation;
  validate(op, 0, 2, &operation);
  if (operation.count != 1) state.SkipWithError("the operation was not completed");
}
BENCHMARK(validate_operation);

}  // namespace
}  // namespace backplane::core

BENCHMARK_MAIN();
