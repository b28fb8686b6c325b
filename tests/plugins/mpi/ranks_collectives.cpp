// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "ranks.hpp"

namespace backplane::mpi_ranks {
namespace {

template <typename T>
void reduce(ProcessGroup& group, ReduceOp op, const std::function<T(T, T)>& combine) {
  const int size = group.world_size();
  const int rank = group.rank();
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{7}, kMany}) {
    std::vector<T> expected = values<T>(0, count * static_cast<uint64_t>(size));
    for (int other = 1; other < size; ++other) {
      const auto theirs = values<T>(other, expected.size());
      for (uint64_t i = 0; i < expected.size(); ++i) expected[i] = combine(expected[i], theirs[i]);
    }
    const auto in = values<T>(rank, expected.size());
    std::vector<T> out(in.size());
    group.all_reduce(in, out, op);
    expect(out == expected, "the result of all_reduce");
    out = in;
    group.all_reduce(out, op);
    expect(out == expected, "the result of all_reduce in place");
    std::vector<T> at_root(rank == 1 ? in.size() : 0);
    group.reduce(in, at_root, 1, op);
    expect(rank != 1 || at_root == expected, "the result of reduce");
    std::vector<T> block(count);
    group.reduce_scatter(in, block, op);
    const auto begin = expected.begin() + static_cast<int64_t>(count) * rank;
    expect(block == std::vector<T>(begin, begin + static_cast<int64_t>(count)), "the result of reduce_scatter");
  }
}

void reductions(ProcessGroup& group) {
  reduce<int32_t>(group, ReduceOp::kSum, [](int32_t a, int32_t b) { return a + b; });
  reduce<int8_t>(group, ReduceOp::kSum, [](int8_t a, int8_t b) { return static_cast<int8_t>(a + b); });
  reduce<int64_t>(group, ReduceOp::kMin, [](int64_t a, int64_t b) { return std::min(a, b); });
  reduce<uint16_t>(group, ReduceOp::kMax, [](uint16_t a, uint16_t b) { return std::max(a, b); });
  reduce<uint32_t>(group, ReduceOp::kBitXor, [](uint32_t a, uint32_t b) { return a ^ b; });
  reduce<uint64_t>(group, ReduceOp::kProd, [](uint64_t a, uint64_t b) { return a * b; });
  reduce<float>(group, ReduceOp::kSum, [](float a, float b) { return a + b; });
  reduce<double>(group, ReduceOp::kSum, [](double a, double b) { return a + b; });
  reduce<double>(group, ReduceOp::kMax, [](double a, double b) { return std::max(a, b); });  // the core's
}

void moves(ProcessGroup& group) {
  const int size = group.world_size();
  const int rank = group.rank();
  const auto width = static_cast<uint64_t>(size);
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, kMany / 2}) {
    auto data = values<int32_t>(rank, count);
    group.broadcast(data, 1);
    expect(data == values<int32_t>(1, count), "the data of broadcast");
    const auto mine = values<double>(rank, count);
    std::vector<double> expected;
    for (int other = 0; other < size; ++other) {
      const auto theirs = values<double>(other, count);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    std::vector<double> all(rank == 0 ? count * width : 0);
    group.gather(mine, all, 0);
    expect(rank != 0 || all == expected, "the blocks of gather");
    std::vector<double> back(count);
    group.scatter(all, back, 0);
    expect(back == mine, "the block of scatter");
    all.assign(count * width, 0);
    group.all_gather(mine, all);
    expect(all == expected, "the blocks of all_gather");
    std::vector<double> turned(count * width);
    group.all_to_all(all, turned);
    for (uint64_t i = 0; i < turned.size(); ++i) {
      expect(turned[i] == expected[static_cast<uint64_t>(rank) * count + i % count], "the blocks of all_to_all");
    }
  }
  group.barrier();
}

// Rank r has r + 1 times `unit` elements, between which there are gaps.
void blocks(ProcessGroup& group, uint64_t unit) {
  const int size = group.world_size();
  const int rank = group.rank();
  Blocks blocks;
  for (int other = 0; other < size; ++other) {
    blocks.counts.push_back(unit * (static_cast<uint64_t>(other) + 1));
    blocks.displs.push_back(10 * unit * static_cast<uint64_t>(other));
  }
  const auto total = 10 * unit * static_cast<uint64_t>(size);
  const auto mine = values<int16_t>(rank, unit * (static_cast<uint64_t>(rank) + 1));
  std::vector<int16_t> expected(total, -1);
  for (int other = 0; other < size; ++other) {
    const auto theirs = values<int16_t>(other, unit * (static_cast<uint64_t>(other) + 1));
    std::copy(theirs.begin(), theirs.end(),
              expected.begin() + static_cast<int64_t>(blocks.displs[static_cast<size_t>(other)]));
  }
  std::vector<int16_t> all(total, -1);
  group.all_gatherv(mine, all, blocks);
  expect(all == expected, "the blocks of all_gatherv, and nothing else");
  std::vector<int16_t> gathered(total, -1);
  group.gatherv(mine, gathered, blocks, 0);
  expect(rank != 0 || gathered == expected, "the blocks of gatherv");
  std::vector<int16_t> back(mine.size());
  group.scatterv(expected, blocks, back, 0);
  expect(back == mine, "the block of scatterv");
  std::vector<int16_t> reduced(mine.size());
  group.reduce_scatterv(expected, blocks, reduced);
  for (size_t i = 0; i < reduced.size(); ++i) expect(reduced[i] == size * mine[i], "the block of reduce_scatterv");
  Blocks ones;  // as many from each
  ones.counts.assign(static_cast<size_t>(size), unit * (static_cast<uint64_t>(rank) + 1));
  std::vector<int16_t> turned(static_cast<size_t>(size) * mine.size());
  group.all_to_allv(expected, blocks, turned, ones);
  for (size_t i = 0; i < turned.size(); ++i) expect(turned[i] == mine[i % mine.size()], "the blocks of all_to_allv");
}

void asynchronous(ProcessGroup& group) {
  std::vector<std::vector<int32_t>> data;
  std::vector<Work> works;
  for (int i = 0; i < 8; ++i) data.push_back(values<int32_t>(group.rank(), 5'000));
  for (auto& each : data) works.push_back(group.all_reduce(each, ReduceOp::kSum, {.async_op = true}));
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  std::vector<int32_t> expected(5'000);
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto theirs = values<int32_t>(rank, expected.size());
    std::transform(theirs.begin(), theirs.end(), expected.begin(), expected.begin(), std::plus<>());
  }
  for (const auto& each : data) expect(each == expected, "the sums of asynchronous all_reduces");
}

}  // namespace

void collectives(ProcessGroup& group) {
  reductions(group);
  moves(group);
  for (const uint64_t unit : {uint64_t{1}, uint64_t{200}}) blocks(group, unit);
  asynchronous(group);
}

void small_all_reduces(ProcessGroup& group) {
  const auto size = static_cast<uint64_t>(group.world_size());
  const auto expected = [size](uint64_t i) {
    return static_cast<int64_t>(size * (i % 50) + 3 * size * (size - 1) / 2);
  };
  for (const uint64_t count : {0U, 1U, 16U, 17U, 500U, 512U, 513U, 1'024U, 1'025U, 4'000U, 8'192U, 8'193U}) {
    const auto own = values<int64_t>(group.rank(), count);
    std::vector<int64_t> in_place = own;
    std::vector<int64_t> sum(count);
    std::vector<int64_t> most = own;
    std::vector<Work> works;
    works.push_back(group.all_reduce(in_place, ReduceOp::kSum, {.async_op = true}));
    works.push_back(group.all_reduce(most, ReduceOp::kMax, {.async_op = true}));
    group.all_reduce(own, sum);
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    for (uint64_t i = 0; i < count; ++i) {
      expect(in_place[i] == expected(i) && sum[i] == expected(i), "the sum in and not in place");
      expect(most[i] == static_cast<int64_t>(i % 50 + 3 * (size - 1)), "the maximum");
    }
    expect(own == values<int64_t>(group.rank(), count), "the input as it was");
  }
  std::vector<float> inexact(100, 0.1F * static_cast<float>(group.rank() + 1));
  group.all_reduce(inexact);
  std::vector<float> of_first = inexact;
  group.broadcast(of_first, 0);
  expect(of_first == inexact, "the same bits on all ranks");
}

}  // namespace backplane::mpi_ranks
