// SPDX-License-Identifier: Apache-2.0
#include "measure/measure.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <utility>

#include "measure/buffers.hpp"
#include "measure/results.hpp"

namespace backplane::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kBlockUs = 200;
constexpr uint64_t kMaxOperations = 1 << 16;  // per block; exact as a float
constexpr size_t kMinBlocks = 5;
constexpr size_t kMaxBlocks = 4000;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Computes without memory accesses, about a microsecond per unit.
void compute(uint64_t units) {
  volatile float sink = 0;
  float x = 1;
  for (uint64_t i = 0; i < units * 256; ++i) x = x * 0.999F + 0.001F;
  sink = x;
  static_cast<void>(sink);
}

// The samples of one target in one row.
class Timing {
 public:
  Timing(Target& target, const Row& row, Buffers& buffers) : target_(target), row_(row), buffers_(buffers) {
    target_.prepare(row_, buffers_.in(), buffers_.in_count(), buffers_.out(), buffers_.out_count());
  }

  // Determines the operations per block; warms up meanwhile.
  void calibrate() {
    repeat(2);
    // The shortest of several runs, because other load lengthens some.
    for (operations_ = 1; operations_ < kMaxOperations; operations_ *= 2) {
      double shortest = kBlockUs;
      for (int i = 0; i < 3; ++i) {
        const Clock::time_point begin = Clock::now();
        repeat(operations_);
        shortest = std::min(shortest, microseconds_since(begin));
      }
      if (agree(shortest < kBlockUs ? 1 : 0) == 0) break;
    }
    if (row_.test != Test::kOverlap) return;
    const Clock::time_point begin = Clock::now();
    repeat(operations_);
    const double own = microseconds_since(begin) / static_cast<double>(operations_);
    constexpr uint64_t kProbe = 200;
    const Clock::time_point computing = Clock::now();
    compute(kProbe);
    const double unit = microseconds_since(computing) / kProbe;
    units_ = agree(std::clamp(std::round(own / unit), 1.0, 1e7));
  }

  void block(bool alternates) {
    if (alternates) once();  // not timed: replaces the data of other targets in the caches
    const Clock::time_point before = begin();
    if (row_.test != Test::kOverlap) return end(before, [this] { once(); });
    end(before, [this] {
      target_.start(step(Op::kAllReduce));
      compute(units_);
      target_.finish();
    });
    end(begin(), [this] { once(); });
    end(begin(), [this] { compute(units_); });
  }

  // Returns rank 0's number on all ranks. It must be exact as a float.
  uint64_t agree(double number) {
    float value = static_cast<float>(number);
    target_.run({Op::kBroadcast, &value, nullptr, 1, 0, 0, true});
    return static_cast<uint64_t>(value);
  }

  // The maximum of each sample over the ranks, on all ranks.
  std::vector<float> slowest() {
    const size_t count = samples_.size();
    std::vector<float> all(count * static_cast<size_t>(target_.size()));
    target_.run({Op::kAllGather, samples_.data(), all.data(), count, 0, 0, true});
    for (size_t i = 0; i < all.size(); ++i) samples_[i % count] = std::max(samples_[i % count], all[i]);
    return samples_;
  }

  uint64_t operations() const { return operations_; }

 private:
  Step step(Op op) {
    return {op, buffers_.in(), buffers_.out(), row_.bytes / sizeof(float), 0, target_.rank() ^ 1, false};
  }
  bool paired() const { return (target_.rank() ^ 1) < target_.size(); }
  bool even() const { return target_.rank() % 2 == 0; }

  void once() {
    switch (row_.test) {
      case Test::kSendRecv:
        return bounce();
      case Test::kBandwidth:
        return stream();
      case Test::kOverlap:
        target_.start(step(Op::kAllReduce));
        return target_.finish();
      default: {
        Step next = step(static_cast<Op>(row_.test));
        next.root = root_;
        if (++root_ == target_.size()) root_ = 0;
        return target_.run(next);
      }
    }
  }

  void bounce() {
    if (!paired()) return;
    target_.run(step(even() ? Op::kSend : Op::kRecv));
    target_.run(step(even() ? Op::kRecv : Op::kSend));
  }

  void stream() {
    if (!paired()) return;
    const uint64_t window = window_of(row_.bytes);
    for (uint64_t i = 0; i < window; ++i) {
      Step one = step(even() ? Op::kSend : Op::kRecv);
      one.in += i * one.count;
      one.out += i * one.count;
      target_.start(one);
    }
    target_.finish();
    Step reply = step(even() ? Op::kRecv : Op::kSend);
    reply.count = 1;
    target_.run(reply);
  }

  void repeat(uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) once();
  }

  Clock::time_point begin() {
    target_.run(step(Op::kBarrier));
    return Clock::now();
  }
  template <typename Body>
  void end(Clock::time_point begin, const Body& body) {
    for (uint64_t i = 0; i < operations_; ++i) body();
    double each = microseconds_since(begin) / static_cast<double>(operations_);
    if (row_.test == Test::kSendRecv) each /= 2;
    if (row_.test == Test::kBandwidth) each /= static_cast<double>(window_of(row_.bytes));
    samples_.push_back(static_cast<float>(each));
  }

  Target& target_;
  const Row row_;
  Buffers& buffers_;
  uint64_t operations_ = 1;
  uint64_t units_ = 1;
  int root_ = 0;
  std::vector<float> samples_;
};

void measure_row(const Task& task, const Row& row, const std::vector<Target*>& targets, Results& results) {
  std::unique_ptr<Buffers> shared;              // of targets without memory of their own
  std::vector<std::unique_ptr<Buffers>> owned;  // of targets with memory of their own
  std::vector<std::pair<size_t, std::unique_ptr<Timing>>> timings;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i]->offers(row.test)) continue;
    std::unique_ptr<Buffers>& slot = targets[i]->allocates_buffers() ? owned.emplace_back() : shared;
    if (!slot) slot = std::make_unique<Buffers>(row, *targets[i]);
    Buffers& buffers = *slot;
    timings.emplace_back(i, std::make_unique<Timing>(*targets[i], row, buffers));
    if (task.check) results.wrong(i, row, check_results(*targets[i], row, buffers));
    buffers.clear();
    timings.back().second->calibrate();
  }
  if (timings.empty()) return;
  const Clock::time_point begin = Clock::now();
  const double limit = task.seconds * 1e6 * static_cast<double>(timings.size());
  for (size_t round = 0; round < kMaxBlocks; ++round) {
    const bool more = round < kMinBlocks || microseconds_since(begin) < limit;
    if (timings.front().second->agree(more ? 1 : 0) == 0) break;
    for (const auto& [index, timing] : timings) timing->block(timings.size() > 1);
    std::reverse(timings.begin(), timings.end());
  }
  for (const auto& [index, timing] : timings) {
    const std::vector<float> samples = timing->slowest();
    if (targets.front()->rank() == 0) results.samples(index, row, timing->operations(), samples);
  }
}

}  // namespace

std::shared_ptr<void> Target::allocate(uint64_t /*bytes*/) { return nullptr; }

void Target::prepare(const Row& /*row*/, float* /*in*/, uint64_t /*in_count*/, float* /*out*/, uint64_t /*out_count*/) {
}

void measure(const Task& task, const std::vector<Target*>& targets, const std::function<void(size_t)>& progress) {
  Results results(task.results);
  size_t done = 0;
  for (const Row& row : task.rows) {
    if (progress && targets.front()->rank() == 0) progress(done++);
    measure_row(task, row, targets, results);
  }
  if (progress && targets.front()->rank() == 0) progress(done);
}

std::function<void(size_t)> progress_line(const Task& task, const std::string& name) {
  if (!task.progress || ::isatty(2) == 0) return {};
  return [rows = task.rows, name](size_t done) {
    if (done < rows.size()) {
      std::fprintf(stderr, "\r%s of %llu B: %s (%zu of %zu)\x1b[K", name_of(rows[done].test),
                   static_cast<unsigned long long>(rows[done].bytes), name.c_str(), done + 1, rows.size());
    } else {
      std::fputs("\r\x1b[K", stderr);
    }
  };
}

}  // namespace backplane::bench
