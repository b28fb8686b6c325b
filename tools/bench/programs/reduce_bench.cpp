// SPDX-License-Identifier: Apache-2.0
//
// The core's reductions of 16 KiB in the cache, in bytes of result per second.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "reduce/combine.hpp"
#include "reduce/reduce.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kBytes = UINT64_C(16) << 10;

// Numbers between about 1/4 and 8, because infinities, NaN and subnormal numbers are slow on some processors. Seed 1.
std::vector<unsigned char> numbers(uint32_t dtype) {
  std::mt19937 random(1);
  std::vector<unsigned char> bytes(kBytes);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  const uint64_t size = dtype_size(dtype);
  for (uint64_t i = size - 1; i < kBytes; i += size) {
    bytes[i] = static_cast<unsigned char>((bytes[i] & (size == 1 ? 0x87 : 0x81)) | (size == 1 ? 0x38 : 0x3E));
  }
  return bytes;
}

void combine_all(benchmark::State& state, uint32_t dtype, uint32_t reduce_op) {
  const std::vector<unsigned char> left = numbers(dtype);
  const std::vector<unsigned char> right = left;
  std::vector<unsigned char> out(kBytes);
  for ([[maybe_unused]] auto _ : state) {
    combine(dtype, reduce_op, out.data(), left.data(), right.data(), kBytes / dtype_size(dtype));
    benchmark::ClobberMemory();
  }
  std::vector<unsigned char> plain(kBytes);
  combine_portable(dtype, reduce_op, plain.data(), left.data(), right.data(), kBytes / dtype_size(dtype));
  if (out != plain) state.SkipWithError("the result differs from the portable implementation");
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytes));
}

// Reduces many inputs at once, or in pairs.
void reduce_all(benchmark::State& state, uint32_t dtype, uint32_t reduce_op, size_t ranks, bool in_pairs) {
  const std::vector<std::vector<unsigned char>> data(ranks, numbers(dtype));
  std::vector<const void*> inputs;
  for (const auto& input : data) inputs.push_back(input.data());
  std::vector<unsigned char> out(kBytes);
  const uint64_t count = kBytes / dtype_size(dtype);
  for ([[maybe_unused]] auto _ : state) {
    if (in_pairs) {
      combine(dtype, reduce_op, out.data(), inputs[0], inputs[1], count);
      for (size_t i = 2; i < ranks; ++i) combine(dtype, reduce_op, out.data(), out.data(), inputs[i], count);
      if (reduce_op == BP_AVG) divide(dtype, out.data(), ranks, count);
    } else {
      reduce(dtype, reduce_op, out.data(), {inputs.data(), nullptr, ranks}, ranks, count);
    }
    benchmark::ClobberMemory();
  }
  std::vector<unsigned char> plain(kBytes);
  reduce_portable(dtype, reduce_op, plain.data(), {inputs.data(), nullptr, ranks}, ranks, count);
  if (!in_pairs && out != plain) state.SkipWithError("the result differs from the portable implementation");
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytes));
}

void divide_all(benchmark::State& state, uint32_t dtype) {
  std::vector<unsigned char> data = numbers(dtype);
  for ([[maybe_unused]] auto _ : state) {
    divide(dtype, data.data(), 1, kBytes / dtype_size(dtype));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytes));
}

}  // namespace
}  // namespace backplane::core

int main(int argc, char** argv) {
  using namespace backplane::core;
  for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) {
    for (const uint32_t op : {BP_SUM, BP_PROD, BP_MAX}) {
      if (!reducible(dtype, op)) continue;
      const std::string name = std::string(dtype_name(dtype)) + "/" + reduce_op_name(op);
      benchmark::RegisterBenchmark(name.c_str(), combine_all, dtype, op);
    }
    if (!reducible(dtype, BP_AVG)) continue;
    benchmark::RegisterBenchmark((std::string(dtype_name(dtype)) + "/divide").c_str(), divide_all, dtype);
    for (const size_t ranks : {2, 4, 8}) {
      for (const bool in_pairs : {true, false}) {
        const std::string name =
            std::string(dtype_name(dtype)) + "/avg of " + std::to_string(ranks) + (in_pairs ? " in pairs" : "");
        benchmark::RegisterBenchmark(name.c_str(), reduce_all, dtype, BP_AVG, ranks, in_pairs);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
