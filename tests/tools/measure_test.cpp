// SPDX-License-Identifier: Apache-2.0
//
// The measuring library and its figures, over targets that do nothing.
#include "measure/measure.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "bench/report.hpp"
#include "measure/buffers.hpp"
#include "support/environment.hpp"

namespace backplane::bench {
namespace {

// A group of one rank. Each block appends its name.
class SingleRank final : public Target {
 public:
  SingleRank(char name, std::string& blocks) : name_(name), blocks_(blocks) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool offers(Test) const override { return true; }
  void run(const Step& step) override {
    if (step.op == Op::kBarrier) blocks_ += name_;  // once at the begin of each block
    if (step.op == Op::kAllGather) std::copy_n(step.in, step.count, step.out);
  }
  void start(const Step& step) override { run(step); }
  void finish() override {}

 private:
  const char name_;
  std::string& blocks_;
};

TEST(Measure, BlocksOfTargetsAlternate) {
  const test::ScopedDirectory directory;
  Task task;
  task.results = (directory.path() / "results").string();
  std::ofstream(task.results).close();
  task.seconds = 0;  // the minimum of rounds
  task.rows = {{bench::Test::kAllReduce, 4}};
  std::string blocks;
  SingleRank a('A', blocks);
  SingleRank b('B', blocks);
  measure(task, {&a, &b}, {});
  EXPECT_EQ(blocks, "ABBAABBAAB");
}

// Rank 1 of two: receives the expected data, except in message `wrong_one` of a window.
class Receiver final : public Target {
 public:
  explicit Receiver(uint64_t wrong_one) : wrong_one_(wrong_one) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  bool offers(Test) const override { return true; }
  void run(const Step& step) override { start(step); }
  void start(const Step& step) override {
    if (step.op == Op::kSend) ++sent_;
    if (step.op != Op::kRecv) return;
    const auto first = static_cast<uint64_t>(step.out - first_);
    for (uint64_t i = 0; i < step.count; ++i) step.out[i] = static_cast<float>((first + i) % 11);  // the data of rank 0
    if (received_++ == wrong_one_) step.out[step.count - 1] = 77;
  }
  void finish() override {}

  float* first_ = nullptr;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;

 private:
  const uint64_t wrong_one_;
};

TEST(Measure, ChecksEachMessageOfAWindow) {
  const Row row = {bench::Test::kBandwidth, 12};
  for (const uint64_t wrong_one : {UINT64_C(0), UINT64_C(40), window_of(12) - 1, window_of(12)}) {
    Receiver target(wrong_one);
    Buffers buffers(row, target);
    target.first_ = buffers.out();
    const std::string wrong = check_results(target, row, buffers);
    EXPECT_EQ(wrong.empty(), wrong_one == window_of(12)) << wrong;
    EXPECT_EQ(target.received_, window_of(12));
    EXPECT_EQ(target.sent_, window_of(12));
  }
}

TEST(Measure, PercentilesAreSamples) {
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(tool::percentile(hundred, 0.01), 1);
  EXPECT_EQ(tool::percentile(hundred, 0.5), 50);
  EXPECT_EQ(tool::percentile(hundred, 0.99), 99);
  EXPECT_EQ(tool::percentile(hundred, 1), 100);
  EXPECT_EQ(tool::percentile({5, 7, 9}, 0.5), 7);
  EXPECT_EQ(tool::percentile({5, 7, 9}, 0.01), 5);
  EXPECT_EQ(tool::percentile({5, 7, 9}, 0.99), 9);
  EXPECT_EQ(tool::percentile({5}, 0), 5);
}

TEST(Measure, FiguresFollowFromTheMedian) {
  Result result;
  result.row = {bench::Test::kAllReduce, 1'000'000};
  result.us = {1000, 400, 500};
  const tool::Measurement moved = tool::summarize("gloo", 4, result, {});
  EXPECT_EQ(moved.p1_us, 400);
  EXPECT_EQ(moved.p50_us, 500);
  EXPECT_EQ(moved.p99_us, 1000);
  EXPECT_DOUBLE_EQ(moved.algbw, 2);
  EXPECT_DOUBLE_EQ(moved.busbw, 3);
  EXPECT_EQ(moved.hidden_percent, -1);
  result.row.test = bench::Test::kOverlap;  // 300 us alone, 350 us of computation, 500 us together
  result.alone = {100, 300, 900};
  result.compute = {340, 350, 360};
  EXPECT_DOUBLE_EQ(tool::summarize("gloo", 4, result, {}).hidden_percent, 50);
  result.us = {800, 900, 1000};
  EXPECT_EQ(tool::summarize("gloo", 4, result, {}).hidden_percent, 0);
  result.us = {200, 300, 340};
  EXPECT_EQ(tool::summarize("gloo", 4, result, {}).hidden_percent, 100);
  result.row = {bench::Test::kBarrier, 0};
  EXPECT_EQ(tool::summarize("gloo", 4, result, {}).algbw, 0);
}

}  // namespace
}  // namespace backplane::bench
