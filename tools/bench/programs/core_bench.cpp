// SPDX-License-Identifier: Apache-2.0
//
// The core's overhead per operation: a backend that does nothing, called through its function table, and through the C
// and C++ APIs (checks, flight recorder, dispatch).
#include <benchmark/benchmark.h>

#include "backplane/backplane.hpp"
#include "programs/noop_backend.hpp"

namespace backplane::bench {
namespace {

ProcessGroup& group() {
  static ProcessGroup made = [] {
    static const NoopBackend backend;
    register_backend(backend.descriptor());
    GroupOptions options;
    options.backend = "noop";
    options.store = Store::inproc();
    options.rank = 0;
    options.world_size = 1;
    return ProcessGroup::create(options);
  }();
  return made;
}

float value = 1.0F;

bp_op all_reduce() {
  bp_op op = ProcessGroup::make_op(BP_ALL_REDUCE, as_buffer(value), as_buffer(value), {});
  op.reduce_op = BP_SUM;
  return op;
}

// Fails the benchmark unless each iteration reached the backend.
class Counted {
 public:
  explicit Counted(benchmark::State& state) : state_(state), before_(NoopBackend::calls) {}
  ~Counted() {
    const uint64_t calls = NoopBackend::calls - before_;
    if (calls != static_cast<uint64_t>(state_.iterations()))
      state_.SkipWithError("an operation did not reach the backend");
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  benchmark::State& state_;
  const uint64_t before_;
};

void direct_submit(benchmark::State& state) {
  const Counted counted(state);
  const bp_process_group_api* table = &NoopBackend::table();
  benchmark::DoNotOptimize(table);  // like a table of a plugin
  const bp_op op = all_reduce();
  for (auto _ : state) {
    bp_error err;
    bp_error_init(&err);
    bp_work* work = nullptr;
    benchmark::DoNotOptimize(table->submit(nullptr, &op, &work, &err));
  }
}
BENCHMARK(direct_submit);

void c_api(benchmark::State& state) {
  bp_group* handle = group().get();
  const Counted counted(state);
  const bp_op op = all_reduce();
  for (auto _ : state) {
    bp_error err;
    bp_error_init(&err);
    benchmark::DoNotOptimize(bp_group_run(handle, &op, &err));
  }
}
BENCHMARK(c_api);

void cpp_api(benchmark::State& state) {
  ProcessGroup& pg = group();
  const Counted counted(state);
  for (auto _ : state) benchmark::DoNotOptimize(pg.all_reduce(as_buffer(value)));
}
BENCHMARK(cpp_api);

void cpp_api_barrier(benchmark::State& state) {
  ProcessGroup& pg = group();
  const Counted counted(state);
  for (auto _ : state) benchmark::DoNotOptimize(pg.barrier());
}
BENCHMARK(cpp_api_barrier);

void cpp_api_async(benchmark::State& state) {
  ProcessGroup& pg = group();
  const Counted counted(state);
  CallOptions options;
  options.async_op = true;
  for (auto _ : state) pg.all_reduce(as_buffer(value), ReduceOp::kSum, options).wait();
}
BENCHMARK(cpp_api_async);

}  // namespace
}  // namespace backplane::bench

BENCHMARK_MAIN();
