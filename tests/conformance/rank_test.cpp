// SPDX-License-Identifier: Apache-2.0
//
// How ranks leave the bodies of cases: return, skip, failure, exception.
#include <gtest/gtest.h>

#include <thread>

#include "rank.hpp"
#include "supervisor.hpp"

namespace backplane::conformance {
namespace {

// Replaces an agent; its peers detect its end.
class Held {
 public:
  explicit Held(Rank& rank) : rank_(rank) {}
  ~Held() { rank_.publish("ended", ""); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Rank& rank_;
};

// Rank 0 skips and rank 1 waits for the others. Rank 2 is late and would report both as lost.
void skip_early(Rank& rank) {
  const Held held(rank);
  if (rank.id() == 0) rank.skip("the test says so");
  if (rank.id() == 1) rank.barrier();
  while (!rank.world().has_left(0) || !rank.world().has_left(1)) std::this_thread::yield();
  std::string word;
  const World::Wait waited = rank.world().get("harness/ended", word, 50 * kMillisecond, [] { return false; });
  rank.check(waited == World::Wait::kTimeout, "all stay until the last one leaves", "one is gone");
}

TEST(Rank, KeepsWhatItHoldsUntilAllLeaveASkippedCase) {
  Case skipping{};
  skipping.loads = false;
  skipping.deadline = 30 * kSecond;
  skipping.body = skip_early;
  RunSettings settings;
  settings.ranks = 3;
  settings.timeout_scale = 30;
  for (const bool one_process : {false, true}) {
    settings.one_process = one_process;
    const Outcomes outcomes = run_case(skipping, {}, settings);
    EXPECT_EQ(outcomes.skips, std::vector<std::string>{"the test says so"});
    EXPECT_EQ(outcomes.findings.size(), 0);
    EXPECT_EQ(outcomes.harness_errors.size(), 0);
  }
}

}  // namespace
}  // namespace backplane::conformance
