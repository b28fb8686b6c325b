// SPDX-License-Identifier: Apache-2.0
#include "copy_tuner.hpp"

#include <gtest/gtest.h>

#include <array>
#include <utility>

namespace backplane::shm::test {
namespace {

// Records a time. Returns true if that completes a new decision.
bool record(CopyTuner& tuner, uint64_t size, bool reads, int64_t ns) {
  return tuner.record(size, reads, ns) && tuner.decide(size, tuner.best(size));
}

TEST(CopyTuner, SelectsTheFasterWayPerPowerOfTwo) {
  CopyTuner tuner;
  for (const uint64_t size : {UINT64_C(64) << 10, UINT64_C(1) << 20}) {
    std::array<uint32_t, 2> tries = {};
    bool decides = false;
    while (tuner.is_open(size)) {
      EXPECT_FALSE(decides);
      const bool reads = tuner.reads(size);
      const int64_t ns = 100'000 + static_cast<int64_t>(++tries[reads ? 1 : 0]);
      decides = record(tuner, size, reads, reads == (size > 100'000) ? ns : 2 * ns - 10'000);
    }
    EXPECT_EQ(tries[0], CopyTuner::kTries);
    EXPECT_EQ(tries[1], CopyTuner::kTries);
    EXPECT_TRUE(decides);
    const std::string text = tuner.text(size);
    EXPECT_NE(text.find(size > 100'000 ? "1 MiB: read" : "64 KiB: staged"), std::string::npos) << text;
  }
  EXPECT_FALSE(tuner.reads(100'000));
  EXPECT_TRUE(tuner.reads((UINT64_C(2) << 20) - 1));
  EXPECT_TRUE(tuner.is_open(UINT64_C(2) << 20));
  EXPECT_TRUE(CopyTuner(Cma::kOn).reads(100'000));
  EXPECT_FALSE(CopyTuner(Cma::kOff).reads(100'000));
  EXPECT_FALSE(CopyTuner(Cma::kOn).is_open(100'000));
}

TEST(CopyTuner, TriesLargeSizesLessOften) {
  constexpr uint64_t kSize = CopyTuner::kLarge;
  CopyTuner tuner;
  uint32_t tries = 0;
  for (; tuner.is_open(kSize); ++tries) {
    EXPECT_EQ(tuner.reads(kSize), tries % 2 == 0);
    record(tuner, kSize, tuner.reads(kSize), tuner.reads(kSize) ? 2'000'000 : 1'000'000);
  }
  EXPECT_EQ(tries, 2 * CopyTuner::kLargeTries);
  EXPECT_FALSE(tuner.reads(kSize));
  EXPECT_TRUE(tuner.is_open(kSize - 1));
}

// Other load may have distorted the first trial.
TEST(CopyTuner, RepeatsTheTrial) {
  constexpr uint64_t kSize = UINT64_C(1) << 20;
  CopyTuner tuner;
  const auto try_both = [&tuner](int64_t ns_of_reading) {
    int decisions = 0;
    while (tuner.is_open(kSize)) {
      const bool reads = tuner.reads(kSize);
      if (record(tuner, kSize, reads, reads ? ns_of_reading : 100'000)) ++decisions;
    }
    return decisions;
  };
  const auto count_use = [&tuner] {
    for (uint32_t i = 0; i < CopyTuner::kUsesUntilRetry; ++i) {
      EXPECT_FALSE(tuner.is_open(kSize));
      tuner.count_use(kSize);
    }
  };
  EXPECT_EQ(try_both(200'000), 1);
  EXPECT_FALSE(tuner.reads(kSize));
  count_use();
  EXPECT_EQ(try_both(50'000), 1);
  EXPECT_TRUE(tuner.reads(kSize));
  count_use();
  EXPECT_EQ(try_both(60'000), 0);  // the decision is unchanged
  EXPECT_TRUE(tuner.reads(kSize));
}

// Messages of several senders overlap, so a time may belong to the other way.
TEST(CopyTuner, IgnoresTimesOfTheOtherWay) {
  constexpr uint64_t kSize = UINT64_C(1) << 20;
  for (const bool are_read : {true, false}) {
    CopyTuner tuner;
    for (uint32_t i = 0; i < 4 * CopyTuner::kTries; ++i) tuner.record(kSize, are_read, 1'000'000);
    EXPECT_TRUE(tuner.is_open(kSize));
    EXPECT_NE(tuner.reads(kSize), are_read) << "the other way is next";
  }
}

TEST(CopyTuner, EndsEarlyIfStagingIsFarSlower) {
  for (const bool oversubscribed : {false, true}) {
    for (const auto& [size, per_turn] :
         {std::pair(UINT64_C(1) << 20, CopyTuner::kPerTurn), std::pair(CopyTuner::kLarge, 1U)}) {
      CopyTuner tuner(Cma::kAuto, oversubscribed);
      uint32_t tries = 0;
      for (; tuner.is_open(size); ++tries) {
        record(tuner, size, tuner.reads(size), tuner.reads(size) ? 1'000'000 : 2'100'000);
      }
      EXPECT_EQ(tries, 2 * per_turn);
      EXPECT_TRUE(tuner.is_decided(size));
      EXPECT_TRUE(tuner.reads(size));
    }
  }
}

// Staging is fast until it reuses slots.
TEST(CopyTuner, UsesTheMedianIfOversubscribed) {
  constexpr uint64_t kSize = UINT64_C(1) << 16;
  CopyTuner tuner(Cma::kAuto, true);
  uint32_t staged_in_a_row = 0;
  uint32_t tries = 0;
  for (; tuner.is_open(kSize); ++tries) {
    const bool reads = tuner.reads(kSize);
    staged_in_a_row = reads ? 0 : staged_in_a_row + 1;
    record(tuner, kSize, reads, reads ? 40'000 : staged_in_a_row <= CopyTuner::kTries / 2 + 2 ? 20'000 : 60'000);
  }
  EXPECT_EQ(tries, 2 * (CopyTuner::kPerTurn + CopyTuner::kTries));
  EXPECT_TRUE(tuner.reads(kSize)) << tuner.text(kSize);
}

TEST(CopyTuner, RanksWithEqualTimesDecideAlike) {
  constexpr uint64_t kSize = UINT64_C(1) << 20;
  CopyTuner tuner;
  const auto tries = [&tuner] {
    while (tuner.is_open(kSize)) tuner.record(kSize, tuner.reads(kSize), tuner.reads(kSize) ? 1'000'000 : 3'000'000);
  };
  tries();
  tuner.decide(kSize, {3.0, 4.0});
  EXPECT_FALSE(tuner.is_decided(kSize)) << "the times of other ranks are close";
  tries();
  EXPECT_TRUE(tuner.reads(kSize));
  EXPECT_FALSE(tuner.is_decided(kSize));
  tuner.decide(kSize, {3.0, 4.0});
  EXPECT_TRUE(tuner.is_decided(kSize));
  EXPECT_FALSE(tuner.reads(kSize));
  EXPECT_TRUE(CopyTuner(Cma::kOn).is_decided(kSize));
}

}  // namespace
}  // namespace backplane::shm::test
