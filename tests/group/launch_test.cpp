// SPDX-License-Identifier: Apache-2.0
#include "backplane/launch.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backplane/compat/megengine.hpp"
#include "backplane/gradients.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

std::vector<std::string> backends_between_processes() {
  std::vector<std::string> names = built_backends();
  std::erase(names, "inproc");
  return names;
}

class LaunchTest : public testing::TestWithParam<std::string> {
 protected:
  RankResults run(int ranks, const RankFunction& function) const {
    return launch(ranks, function, {.backend = GetParam(), .timeout = std::chrono::seconds(60)});
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LaunchTest, testing::ValuesIn(backends_between_processes()),
                         [](const auto& info) { return info.param; });

TEST_P(LaunchTest, ResultsAreCollectedByRank) {
  const std::vector<int> before = {10};  // the ranks see what was there
  const RankResults results = run(3, [&before](ProcessGroup& group) {
    int sum = before.front();
    all_reduce(as_buffer(sum));  // the default group is there
    return std::to_string(group.rank()) + std::string(100'000, 'x') + std::to_string(sum) + group.backend();
  });
  ASSERT_EQ(results.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[static_cast<size_t>(rank)], std::to_string(rank) + std::string(100'000, 'x') + "30" + GetParam());
  }
  EXPECT_FALSE(compat::is_distributed());  // here nothing has changed
}

TEST_P(LaunchTest, ThereIsADefaultGroupToSynchronize) {
  const RankResults results = run(3, [](ProcessGroup& group) {
    if (!compat::is_distributed()) return std::string("no default group");
    auto leave_alone = compat::synchronized([&group] {
      if (group.rank() == 1) throw std::runtime_error("rank 1 stumbles");
    });
    try {
      leave_alone();
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string("came back alone");
  });
  ASSERT_EQ(results.size(), 3U);
  for (const auto& said : results) {
    ASSERT_TRUE(said);
    EXPECT_NE(said->find("rank 1 stumbles"), std::string::npos) << *said;
  }
}

TEST_P(LaunchTest, GradientsOverProcesses) {
  const RankResults results = run(2, [](ProcessGroup& group) {
    GradientReducer reducer(group, {.method = ReduceMethod::kMean, .pack_bytes = 4096});
    std::vector<std::vector<float>> gradients(8, std::vector<float>(700, static_cast<float>(group.rank())));
    for (size_t i = 0; i < gradients.size(); ++i) reducer.add(std::to_string(i), gradients[i]);
    reducer.finish();
    for (const auto& gradient : gradients) {
      if (gradient != std::vector<float>(700, 0.5F)) return std::string("wrong");
    }
    return std::string("right");
  });
  EXPECT_EQ(results, (RankResults{"right", "right"}));
}

TEST_P(LaunchTest, ARankThatReturnsNothingIsToldOf) {
  testing::internal::CaptureStderr();
  const RankResults results = run(2, [](ProcessGroup& group) -> std::optional<std::string> {
    group.barrier();
    if (group.rank() == 1) return std::nullopt;
    return "";
  });
  EXPECT_EQ(results, (RankResults{"", std::nullopt}));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("rank 1 returned nothing"), std::string::npos);
}

TEST_P(LaunchTest, AnyFailureEndsAllAndIsNamed) {
  std::string text;
  const auto failure = [this, &text](const RankFunction& function) {
    try {
      run(3, function);
    } catch (const Error& e) {
      text = e.what();
      EXPECT_EQ(e.peer_rank(), 1) << text;
      return e.status();
    }
    ADD_FAILURE() << "no failure";
    return Status::kInternal;
  };
  // The others sleep until they are ended.
  const auto others = [](ProcessGroup& group) {
    group.barrier();
    if (group.rank() != 1) ::pause();
  };
  EXPECT_EQ(failure([&others](ProcessGroup& group) -> std::optional<std::string> {
              others(group);
              throw std::runtime_error("out of luck");
            }),
            Status::kCancelled);
  EXPECT_NE(text.find("failed: out of luck"), std::string::npos) << text;
  EXPECT_EQ(failure([&others](ProcessGroup& group) -> std::optional<std::string> {
              others(group);
              ::raise(SIGKILL);
              return "";
            }),
            Status::kPeerLost);
  EXPECT_NE(text.find("was killed by signal 9"), std::string::npos) << text;
  EXPECT_EQ(failure([&others](ProcessGroup& group) -> std::optional<std::string> {
              others(group);
              ::_exit(3);
            }),
            Status::kPeerLost);
  EXPECT_NE(text.find("exited with code 3"), std::string::npos) << text;
  EXPECT_EQ(::waitpid(-1, nullptr, 0), -1);  // no child is left
}

// Waits until a process has ended and was waited for, so that its launcher has heard of it.
void await_end(pid_t pid) {
  while (::kill(pid, 0) == 0) std::this_thread::yield();
}

TEST(LaunchLimitsTest, WhoFailedIsNamedAlsoIfThoseWhoLostItAreHeardOfBefore) {
  const RankFunction function = [](ProcessGroup& group) -> std::optional<std::string> {
    int32_t first = ::getpid();
    group.broadcast(as_buffer(first), 0);
    try {
      group.barrier();
    } catch (const Error&) {
      // Of others than rank 0 it may fail: rank 0 leaves it first, perhaps.
    }
    if (group.rank() == 0) {
      bp_error lost;
      bp_error_init(&lost);
      bp_error_set(&lost, BP_PEER_LOST, 0, 1, "a peer is lost");
      throw Error(lost);
    }
    await_end(first);
    if (group.rank() == 1) throw std::runtime_error("out of luck");
    for (;;) ::pause();
  };
  std::string text;
  EXPECT_EQ(
      failure_of([&function] { launch(3, function, {.backend = "shm", .timeout = std::chrono::seconds(60)}); }, &text),
      Status::kCancelled);
  EXPECT_NE(text.find("rank 1 (pid"), std::string::npos) << text;
  EXPECT_NE(text.find("failed: out of luck"), std::string::npos) << text;
}

TEST(LaunchLimitsTest, WhoLostAPeerIsNamedIfNobodyElseFails) {
  const RankFunction function = [](ProcessGroup& group) -> std::optional<std::string> {
    group.barrier();
    if (group.rank() != 0) {
      for (;;) ::pause();
    }
    bp_error lost;
    bp_error_init(&lost);
    bp_error_set(&lost, BP_PEER_LOST, 0, 1, "a peer is lost");
    throw Error(lost);
  };
  std::string text;
  EXPECT_EQ(
      failure_of([&function] { launch(2, function, {.backend = "shm", .timeout = std::chrono::seconds(60)}); }, &text),
      Status::kCancelled);
  EXPECT_NE(text.find("rank 0 (pid"), std::string::npos) << text;
  EXPECT_NE(text.find("failed: a peer is lost"), std::string::npos) << text;
  EXPECT_EQ(::waitpid(-1, nullptr, 0), -1);
}

int told_of_signals = -1;  // the writing end of a pipe, which ranks inherit

// Does not end for SIGTERM. After SIGALRM, the process does.
void tell_of_signal(int number) {
  const char letter = number == SIGTERM ? 't' : 'a';
  if (::write(told_of_signals, &letter, 1) != 1 || number == SIGALRM) ::_exit(1);
}

// They are asked to end, and killed when the grace is over.
TEST(LaunchLimitsTest, TimeIsUpForRanksThatDoNotListen) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  told_of_signals = ends[1];
  const auto before = std::signal(SIGTERM, tell_of_signal);  // of the rank, however early it is asked
  const RankFunction deaf = [](ProcessGroup&) -> std::optional<std::string> {
    std::signal(SIGALRM, tell_of_signal);
    ::alarm(60);  // if nobody kills it
    for (;;) ::pause();
  };
  std::string text;
  EXPECT_EQ(failure_of(
                [&deaf] {
                  launch(
                      1, deaf,
                      {.backend = "self", .timeout = std::chrono::milliseconds(300), .grace = std::chrono::seconds(1)});
                },
                &text),
            Status::kTimeout);
  std::signal(SIGTERM, before);
  EXPECT_NE(text.find("the ranks did not end in time"), std::string::npos) << text;
  ::close(ends[1]);
  std::array<char, 8> heard{};
  EXPECT_EQ(::read(ends[0], heard.data(), heard.size()), 1);
  EXPECT_EQ(heard[0], 't');
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(-1, nullptr, 0), -1);
}

// As the original refused to fork once a device was in use.
// A signal that asks it to end is delivered to a stopped process when it goes on.
TEST(LaunchLimitsTest, AStoppedRankIsAskedToEndBeforeItIsKilled) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  told_of_signals = ends[1];
  const RankFunction stopped = [](ProcessGroup&) -> std::optional<std::string> {
    std::signal(SIGTERM, [](int) {
      const ssize_t written = ::write(told_of_signals, "T", 1);
      ::_exit(written == 1 ? 1 : 2);
    });
    ::raise(SIGSTOP);
    for (;;) ::pause();
  };
  const auto run = [&stopped] {
    launch(1, stopped,
           {.backend = "self", .timeout = std::chrono::milliseconds(300), .grace = std::chrono::seconds(10)});
  };
  EXPECT_EQ(failure_of(run), Status::kTimeout);
  ::close(ends[1]);
  char heard = 0;
  EXPECT_EQ(::read(ends[0], &heard, 1), 1) << "it was killed without having been asked";
  ::close(ends[0]);
}

TEST(LaunchLimitsTest, AProcessWithThreadsIsNotCopied) {
  std::latch done(1);
  std::thread other([&done] { done.wait(); });
  std::string text;
  EXPECT_EQ(failure_of([] { launch(1, [](ProcessGroup&) { return ""; }); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("one thread"), std::string::npos) << text;
  done.count_down();
  other.join();
  EXPECT_EQ(failure_of([] { launch(0, [](ProcessGroup&) { return ""; }); }, &text), Status::kInvalid);
  EXPECT_NE(text.find("at least one rank, not 0"), std::string::npos) << text;
}

}  // namespace
}  // namespace backplane::test
