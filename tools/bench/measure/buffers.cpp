// SPDX-License-Identifier: Apache-2.0
#include "measure/buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <sstream>

#include "measure/measure.hpp"

namespace backplane::bench {
namespace {

std::shared_ptr<float> allocate(uint64_t count, Target& target) {
  constexpr uint64_t kPage = 4096;
  const uint64_t bytes = (std::max<uint64_t>(count, 1) * sizeof(float) + kPage - 1) / kPage * kPage;
  if (target.allocates_buffers()) return std::static_pointer_cast<float>(target.allocate(bytes));
  auto* memory = static_cast<float*>(std::aligned_alloc(kPage, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, [](float* given) { std::free(given); }};
}

uint64_t blocks(const Row& row, int size, std::initializer_list<Test> many) {
  if (row.test == Test::kBandwidth) return window_of(row.bytes);
  return std::find(many.begin(), many.end(), row.test) != many.end() ? static_cast<uint64_t>(size) : 1;
}

// The input of a rank at index i. Sums of a thousand ranks are exact.
float given(int rank, uint64_t i) { return static_cast<float>(rank * 3) + static_cast<float>(i % 11); }

float sum_of_given(int size, uint64_t i) {
  float sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += given(rank, i);
  return sum;
}

struct Check {
  Target& target;
  const Row& row;
  Buffers& buffers;
  const uint64_t count = row.bytes / sizeof(float);

  float expected(int root, uint64_t i) const {
    const auto rank = static_cast<uint64_t>(target.rank());
    switch (row.test) {
      case Test::kBroadcast:
        return given(root, i);
      case Test::kReduce:
      case Test::kAllReduce:
      case Test::kOverlap:
        return sum_of_given(target.size(), i);
      case Test::kReduceScatter:
        return sum_of_given(target.size(), rank * count + i);
      case Test::kScatter:
        return given(root, rank * count + i);
      case Test::kGather:
      case Test::kAllGather:
        return given(static_cast<int>(i / count), i % count);
      case Test::kAllToAll:
        return given(static_cast<int>(i / count), rank * count + i % count);
      default:
        return given(target.rank() ^ 1, i);
    }
  }

  // The buffer that holds the result on this rank, and the number of its elements.
  const float* result(int root, uint64_t* places) const {
    const bool at_root = target.rank() == root;
    *places = count;
    switch (row.test) {
      case Test::kBroadcast:
      case Test::kAllReduce:
      case Test::kOverlap:
        return buffers.in();
      case Test::kReduce:
        *places = at_root ? count : 0;
        break;
      case Test::kGather:
        *places = at_root ? count * static_cast<uint64_t>(target.size()) : 0;
        break;
      case Test::kAllGather:
      case Test::kAllToAll:
        *places = count * static_cast<uint64_t>(target.size());
        break;
      case Test::kBandwidth:
        *places = count * window_of(row.bytes);
        break;
      default:
        break;
    }
    return buffers.out();
  }

  void perform(int root) const {
    const int peer = target.rank() ^ 1;
    Step step{static_cast<Op>(row.test), buffers.in(), buffers.out(), count, root, peer};
    if (row.test == Test::kOverlap) {
      step.op = Op::kAllReduce;
      target.start(step);
      return target.finish();
    }
    if (row.test != Test::kSendRecv && row.test != Test::kBandwidth) return target.run(step);
    const bool even = target.rank() % 2 == 0;
    for (const bool sends : {even, !even}) {
      step.op = sends ? Op::kSend : Op::kRecv;
      if (row.test == Test::kSendRecv) {
        target.run(step);
      } else {
        stream(step);
      }
    }
  }

  // A window of messages, each with its own part of the buffers.
  void stream(Step step) const {
    for (uint64_t i = window_of(row.bytes); i > 0; --i) {
      target.start(step);
      step.in += count;
      step.out += count;
    }
    target.finish();
  }

  std::string once(int root) const {
    for (uint64_t i = 0; i < buffers.in_count(); ++i) buffers.in()[i] = given(target.rank(), i);
    std::fill_n(buffers.out(), buffers.out_count(), -1.0F);
    perform(root);
    uint64_t places = 0;
    const float* got = result(root, &places);
    for (uint64_t i = 0; i < places; ++i) {
      const float wanted = expected(root, i);
      if (got[i] == wanted) continue;
      std::ostringstream sentence;
      sentence << "rank " << target.rank() << " of " << target.size() << " got " << got[i] << " as element " << i
               << " of " << places << ", expected " << wanted;
      return sentence.str();
    }
    return {};
  }
};

}  // namespace

Buffers::Buffers(const Row& row, Target& target)
    : is_host_(target.has_host_memory()),
      in_count_(row.bytes / sizeof(float) *
                blocks(row, target.size(), {Test::kScatter, Test::kReduceScatter, Test::kAllToAll})),
      out_count_(row.bytes / sizeof(float) *
                 blocks(row, target.size(), {Test::kGather, Test::kAllGather, Test::kAllToAll})),
      in_(allocate(in_count_, target)),
      out_(allocate(out_count_, target)) {
  clear();
}

void Buffers::clear() {
  if (!is_host_) return;
  std::fill_n(in_.get(), in_count_, 0.0F);
  std::fill_n(out_.get(), out_count_, 0.0F);
}

std::string check_results(Target& target, const Row& row, Buffers& buffers) {
  if (row.test == Test::kBarrier) return {};  // no result to check
  const Check check{target, row, buffers};
  const bool messages = row.test == Test::kSendRecv || row.test == Test::kBandwidth;
  if (messages && (target.rank() ^ 1) >= target.size()) return {};
  const bool rooted = row.test == Test::kBroadcast || row.test == Test::kReduce || row.test == Test::kGather ||
                      row.test == Test::kScatter;
  std::string wrong;
  for (int root = 0; root < (rooted ? target.size() : 1); ++root) {
    const std::string found = check.once(root);
    if (wrong.empty()) wrong = found;  // continues, because the other ranks need this one
  }
  return wrong;
}

}  // namespace backplane::bench
