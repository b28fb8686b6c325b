// SPDX-License-Identifier: Apache-2.0
#include "backplane/launch.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
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
#include "support/system_calls.hpp"

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
  const std::vector<int> before = {10};  // visible to the ranks
  const RankResults results = run(3, [&before](ProcessGroup& group) {
    int sum = before.front();
    all_reduce(as_buffer(sum));  // over the default group
    return std::to_string(group.rank()) + std::string(100'000, 'x') + std::to_string(sum) + group.backend();
  });
  ASSERT_EQ(results.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[static_cast<size_t>(rank)], std::to_string(rank) + std::string(100'000, 'x') + "30" + GetParam());
  }
  EXPECT_FALSE(compat::is_distributed());  // unchanged in this process
}

// In a sandbox, or before Linux 5.3.
TEST_P(LaunchTest, WorksWithoutPidfd) {
  const auto launch_in_sandbox = [this] {
    if (!answer_with(SECCOMP_RET_ERRNO | EPERM, SYS_pidfd_open)) std::exit(2);
    const RankResults results = run(2, [](ProcessGroup& group) { return std::to_string(group.rank()); });
    std::string text;
    const Status status =
        failure_of([this] { run(2, [](ProcessGroup&) -> std::optional<std::string> { abort(); }); }, &text);
    std::exit(results == RankResults{"0", "1"} && status == Status::kPeerLost ? 0 : 1);
  };
  EXPECT_EXIT(launch_in_sandbox(), testing::ExitedWithCode(0), "");
}

TEST_P(LaunchTest, SynchronizeUsesTheDefaultGroup) {
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

TEST_P(LaunchTest, ARankThatReturnsNothingIsReported) {
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
  // The others sleep until the launcher ends them.
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
  EXPECT_EQ(::waitpid(-1, nullptr, 0), -1);  // no child process remains
}

// The kernel reaps the rank, so that its end is unknown.
TEST(LaunchLimitsTest, ARankThatIsKilledWhereSigchldIsIgnoredIsReported) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  const RankFunction killed = [](ProcessGroup&) -> std::optional<std::string> {
    ::raise(SIGKILL);
    return "";
  };
  std::string text;
  EXPECT_EQ(failure_of([&killed] { launch(1, killed, {.backend = "self"}); }, &text), Status::kPeerLost);
  std::signal(SIGCHLD, before);
  EXPECT_NE(text.find("ended without a result; SIGCHLD is ignored"), std::string::npos) << text;
}

// Waits until the launcher has reaped a process.
void await_end(pid_t pid) {
  while (::kill(pid, 0) == 0) std::this_thread::yield();
}

TEST(LaunchLimitsTest, TheFailedRankIsNamedEvenIfItsPeersFailFirst) {
  const RankFunction function = [](ProcessGroup& group) -> std::optional<std::string> {
    int32_t first = ::getpid();
    group.broadcast(as_buffer(first), 0);
    try {
      group.barrier();
    } catch (const Error&) {
      // May fail on ranks other than 0 if rank 0 leaves first.
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

TEST(LaunchLimitsTest, ARankThatLostAPeerIsNamedIfNoOtherRankFails) {
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

int signal_pipe = -1;  // the writing end of a pipe, which ranks inherit

// Ignores SIGTERM. SIGALRM ends the process.
void report_signal(int number) {
  const char letter = number == SIGTERM ? 't' : 'a';
  if (::write(signal_pipe, &letter, 1) != 1 || number == SIGALRM) ::_exit(1);
}

// The ranks get SIGTERM, and SIGKILL after the grace period.
TEST(LaunchLimitsTest, RanksThatIgnoreSigtermAreKilledAtTheTimeout) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  signal_pipe = ends[1];
  const auto before = std::signal(SIGTERM, report_signal);  // inherited by the rank, which may get the signal early
  const RankFunction deaf = [](ProcessGroup&) -> std::optional<std::string> {
    std::signal(SIGALRM, report_signal);
    ::alarm(60);  // unless it is killed before
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
  std::array<char, 8> received{};
  EXPECT_EQ(::read(ends[0], received.data(), received.size()), 1);
  EXPECT_EQ(received[0], 't');
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(-1, nullptr, 0), -1);
}

// A stopped process gets SIGTERM when it continues.
TEST(LaunchLimitsTest, AStoppedRankGetsSigtermBeforeItIsKilled) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  signal_pipe = ends[1];
  const auto before = std::signal(SIGTERM, [](int) {  // inherited by the rank, which may get the signal early
    const ssize_t written = ::write(signal_pipe, "T", 1);
    ::_exit(written == 1 ? 1 : 2);
  });
  const RankFunction stopped = [](ProcessGroup&) -> std::optional<std::string> {
    ::raise(SIGSTOP);
    for (;;) ::pause();
  };
  const auto run = [&stopped] {
    launch(1, stopped,
           {.backend = "self", .timeout = std::chrono::milliseconds(300), .grace = std::chrono::seconds(10)});
  };
  EXPECT_EQ(failure_of(run), Status::kTimeout);
  std::signal(SIGTERM, before);
  ::close(ends[1]);
  char received = 0;
  EXPECT_EQ(::read(ends[0], &received, 1), 1) << "it was killed without SIGTERM";
  ::close(ends[0]);
}

// The original refused to fork after a device was used.
TEST(LaunchLimitsTest, AProcessWithThreadsIsNotForked) {
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
