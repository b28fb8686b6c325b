// SPDX-License-Identifier: Apache-2.0
//
// Overhead of a layer: an all_reduce of one float through the C API over a backend that does nothing, with and without
// each layer.
#include <benchmark/benchmark.h>

#include "backplane/backplane.hpp"
#include "programs/noop_backend.hpp"
#include "support/environment.hpp"

namespace backplane::bench {
namespace {

ProcessGroup make_group(const std::string& layers) {
  static const NoopBackend backend;
  static const bool registered = [] {
    register_backend(backend.descriptor());
    return true;
  }();
  benchmark::DoNotOptimize(registered);
  const test::ScopedVariable variable("BACKPLANE_LAYERS", layers);
  GroupOptions options;
  options.backend = "noop";
  options.store = Store::inproc();
  options.rank = 0;
  options.world_size = 1;
  return ProcessGroup::create(options);
}

void all_reduce(benchmark::State& state, const std::string& layers) {
  const test::ScopedDirectory directory;
  std::string text = layers;
  if (const size_t at = text.find('@'); at != std::string::npos) text.replace(at, 1, directory.path().string());
  ProcessGroup group = make_group(text);
  float value = 1;
  bp_op op = ProcessGroup::make_op(BP_ALL_REDUCE, as_buffer(value), as_buffer(value), {});
  op.reduce_op = BP_SUM;
  for (auto _ : state) {
    bp_error err;
    bp_error_init(&err);
    if (bp_group_run(group.get(), &op, &err) != BP_OK) return state.SkipWithError(err.text);
  }
}
BENCHMARK_CAPTURE(all_reduce, bare, "");
BENCHMARK_CAPTURE(all_reduce, trace, "trace");
BENCHMARK_CAPTURE(all_reduce, trace_chrome, "trace?chrome=@/t");
BENCHMARK_CAPTURE(all_reduce, chaos, "chaos?rules=rank 1: crash");
BENCHMARK_CAPTURE(all_reduce, validate, "validate");

}  // namespace
}  // namespace backplane::bench

BENCHMARK_MAIN();
