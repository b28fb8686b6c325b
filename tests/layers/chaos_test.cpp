// SPDX-License-Identifier: Apache-2.0
//
// The layer `chaos`: parsing of rules, and the effect of each fault.
#include <csignal>

#include "layers/support.hpp"

namespace backplane::test {
namespace {

constexpr CallOptions kSoon = {.timeout = std::chrono::milliseconds(20)};

TEST(ChaosTest, ReportsThePositionOfAnInvalidRule) {
  const std::pair<const char*, const char*> cases[] = {
      {"chaos", "give either rules or file"},
      {"chaos?rules=; ;", "rules has no rule"},
      {"chaos?rules=send", "line 1, column 1: this rule has no action"},
      {"chaos?rules=send:", "column 5: no action after ':'"},
      {"chaos?rules=send: drop; sendd: drop", "column 13: 'sendd' is not a condition; use any,"},
      {"chaos?rules=send|all: drop", "column 6: 'all' is not a condition"},
      {"chaos?rules=rank: drop", "column 1: 'rank' needs a rank"},
      {"chaos?rules=rank two: drop", "column 6: 'two' is not a number from 0"},
      {"chaos?rules=rank 3-1: drop", "column 6: '3-1' is not a number from 3"},
      {"chaos?rules=every 0: drop", "column 7: '0' is not a number from 1"},
      {"chaos?rules=chance 2: drop", "column 8: '2' is not a number from 0 to 1"},
      {"chaos?rules=101%25: drop", "column 1: '101%' is not a number from 0 to 100"},
      {"chaos?rules=after 1 after 2: drop", "column 9: 'after' repeats a condition"},
      {"chaos?rules=any: explode", "column 6: 'explode' is not an action; use delay"},
      {"chaos?rules=any: delay", "column 6: 'delay' needs a duration"},
      {"chaos?rules=any: delay 5", "column 12: '5' is not a duration"},
      {"chaos?rules=any: delay 5ms..1ms", "column 12: '5ms..1ms' has an end before its beginning"},
      {"chaos?rules=message: reorder 5ms", "column 10: 'reorder' applies to sends only; begin the rule with send"},
      {"chaos?rules=send tag: drop", "column 6: 'tag' needs a tag"},
      {"chaos?rules=any: error ok", "column 12: 'ok' is not a status; use timeout"},
      {"chaos?rules=any: drop it", "column 11: 'it' is unexpected after the action"},
      {"chaos?file=/nonexistent", "cannot read the rules in /nonexistent: No such file"},
      {"chaos?rules=any:drop&seed=-1", "seed"},
  };
  for (const auto& [layers, part] : cases) {
    const std::string text = refusal(layers);
    EXPECT_TRUE(contains(text, part)) << layers << "\n" << text;
  }
}

TEST(ChaosTest, ReadsRulesFromAFile) {
  const ScopedDirectory directory;
  const std::string path = (directory.path() / "rules").string();
  std::ofstream(path) << "# the second send\nrank 0, send, after 1, once: error resource  # and no other\n\n";
  in_layers("chaos?file=" + path, "self", 1, [](ProcessGroup& group) {
    int value = 1;
    group.send(as_buffer(value), 0);
    std::string text;
    EXPECT_EQ(failure_of([&] { group.send(as_buffer(value), 0); }, &text), Status::kResource);
    EXPECT_TRUE(
        contains(text, "chaos: send #2 of rank 0 triggers rule 1 (rank 0, send, after 1, once: error resource)"))
        << text;
    group.send(as_buffer(value), 0);
  });
  std::ofstream(path) << "any: drop\n  any: dropp\n";
  EXPECT_TRUE(contains(refusal("chaos?file=" + path), path + ", line 2, column 8: 'dropp' is not an action"));
}

// Returns which of 300 sends fail.
std::vector<bool> failures(const std::string& rules) {
  std::vector<bool> failed;
  in_layers("chaos?rules=" + rules, "self", 1, [&failed](ProcessGroup& group) {
    int value = 1;
    for (int i = 0; i < 300; ++i) {
      try {
        group.send(as_buffer(value), 0);
        failed.push_back(false);
      } catch (const Error& e) {
        EXPECT_EQ(e.status(), Status::kTimeout);
        failed.push_back(true);
      }
    }
  });
  return failed;
}

TEST(ChaosTest, SameSeedGivesSameFaults) {
  const auto first = failures("chance 0.3: error timeout&seed=7");
  EXPECT_EQ(failures("chance+0.3:error+timeout&seed=7"), first);
  EXPECT_EQ(failures("30%25 send: error timeout&seed=7"), first);
  EXPECT_NE(failures("chance 0.3: error timeout&seed=8"), first);
  const auto count = std::count(first.begin(), first.end(), true);
  EXPECT_GT(count, 55);
  EXPECT_LT(count, 125);
  const auto regular = failures("recv: crash; message after 100 every 10 times 3: error timeout");
  std::vector<bool> expected(300, false);
  for (const size_t i : {109, 119, 129}) expected[i] = true;
  EXPECT_EQ(regular, expected);
  EXPECT_EQ(failures("rank 1: crash; peer 1: crash; collective: crash"), std::vector<bool>(300, false));
}

// A rule that triggers often is logged once a second.
TEST(ChaosTest, LinesOfARuleAreLimited) {
  ScopedLog log;
  const auto begin = std::chrono::steady_clock::now();
  failures("send: error timeout");
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_TRUE(contains(log.text(), "triggers rule 1")) << log.text();
  EXPECT_LE(lines_with(log.text(), "triggers rule 1"), seconds + 1) << log.text();
}

class ChaosFaultTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, ChaosFaultTest, testing::ValuesIn(built_backends()));

TEST_P(ChaosFaultTest, DroppedOperationsNeverComplete) {
  in_layers("chaos?rules=rank 0 send times 3: drop", GetParam(), 2, [](ProcessGroup& group) {
    int value = 1;
    if (group.rank() == 0) {
      EXPECT_EQ(failure_of([&] { group.send(as_buffer(value), 1, 1, kSoon); }), Status::kTimeout);
      Work waits = group.isend(as_buffer(value), 1, 1, kSoon);
      EXPECT_EQ(failure_of([&] { waits.wait(); }), Status::kTimeout);
      Work cancelled = group.isend(as_buffer(value), 1, 1);
      EXPECT_FALSE(cancelled.is_completed());
      cancelled.cancel();
      EXPECT_EQ(failure_of([&] { cancelled.wait(); }), Status::kCancelled);
      value = 4;
      group.send(as_buffer(value), 1, 1);
    } else {
      group.recv(as_buffer(value), 0, 1);
      EXPECT_EQ(value, 4);
    }
    group.barrier();
  });
}

// Neither submit nor cancel, abort and destroy wait for the delay of an hour.
TEST_P(ChaosFaultTest, DelaysDoNotBlockAndEndOnCancelAbortAndDestroy) {
  for (const std::string action : {"delay 1h", "stall 1h", "drop"}) {
    ScopedLog log;
    BarrierLeftByAll barrier(2);
    in_layers("chaos?rules=rank 0 recv after 8: " + action, GetParam(), 2, [&barrier](ProcessGroup& group) {
      for (int i = 0; i < 8; ++i) barrier(group);
      if (group.rank() != 0) return;
      // Enough receives to trigger the rule: over a backend of messages the barriers have received some before.
      std::vector<int> values(12);
      std::vector<Work> works;
      for (int& value : values) works.push_back(group.irecv(as_buffer(value), 0, 5));
      works.back().cancel();
      EXPECT_EQ(failure_of([&] { works.back().wait(); }), Status::kCancelled);
      std::string text;
      group.abort("aborted by the test");
      EXPECT_EQ(failure_of([&] { works[10].wait(); }, &text), Status::kCancelled);
      EXPECT_TRUE(contains(text, "aborted by the test")) << text;
    });
    EXPECT_TRUE(contains(log.text(), "triggers rule 1 (rank 0 recv after 8: " + action + ")")) << log.text();
    in_layers("chaos?rules=recv: " + action, "self", 1, [](ProcessGroup& group) {
      int value = 0;
      Work pending = group.irecv(as_buffer(value), 0);
      group.destroy();
      EXPECT_EQ(failure_of([&] { pending.wait(); }), Status::kCancelled);
    });
    EXPECT_TRUE(contains(log.text(), "triggers rule 1 (recv: " + action + ")")) << log.text();
  }
}

TEST_P(ChaosFaultTest, DelayedMessagesKeepTheirOrder) {
  ScopedLog log;
  in_layers("chaos?rules=chance 0.4: delay 0ms..2ms; every 50: stall 3ms", GetParam(), 3, [](ProcessGroup& group) {
    const int next = (group.rank() + 1) % 3;
    const int previous = (group.rank() + 2) % 3;
    std::vector<int> out(60);
    std::vector<int> in(60, -1);
    std::vector<Work> works;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<int>(i);
      works.push_back(group.irecv(as_buffer(in[i]), previous));
      works.push_back(group.isend(as_buffer(out[i]), next));
    }
    for (Work& work : works) work.wait();
    EXPECT_EQ(in, out);
    std::vector<double> sums(1000, group.rank());
    group.all_reduce(sums);
    EXPECT_EQ(sums, std::vector<double>(1000, 3));
    std::vector<int> all(3);
    const int mine = group.rank();
    group.all_gather(as_buffer(mine), all, {.async_op = true}).wait();
    EXPECT_EQ(all, (std::vector<int>{0, 1, 2}));
    group.barrier();
  });
  EXPECT_TRUE(contains(log.text(), "triggers rule 1 (chance 0.4: delay 0ms..2ms)")) << "nothing was delayed";
  EXPECT_TRUE(contains(log.text(), "triggers rule 2 (every 50: stall 3ms)")) << "nothing was held up";
}

TEST(ChaosDeathTest, CrashKillsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(in_layers("chaos?rules=rank 0 send after 1: crash", "self", 1,
                        [](ProcessGroup& group) {
                          int value = 1;
                          group.send(as_buffer(value), 0);
                          group.send(as_buffer(value), 0);
                        }),
              testing::KilledBySignal(SIGKILL), "triggers rule 1 \\(rank 0 send after 1: crash\\)");
}

}  // namespace
}  // namespace backplane::test
