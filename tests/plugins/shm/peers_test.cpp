// SPDX-License-Identifier: Apache-2.0
#include "peers.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.hpp"
#include "ranks.hpp"
#include "support/eventually.hpp"

namespace backplane::shm::test {
namespace {

// A process that sleeps until it is killed.
class SleepingProcess {
 public:
  SleepingProcess() : id_(fork()) {
    if (id_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // also if the test crashes
    for (;;) pause();
  }
  ~SleepingProcess() {
    kill();
    waitpid(id_, nullptr, 0);
  }
  SleepingProcess(const SleepingProcess&) = delete;
  SleepingProcess& operator=(const SleepingProcess&) = delete;

  pid_t id() const { return id_; }
  void kill() const { ::kill(id_, SIGKILL); }

 private:
  pid_t id_;
};

// Registers a process that does not take part as a rank.
void register_rank(const View& view, int32_t rank, pid_t process) {
  Member& member = view.member(rank);
  member.pid = process;
  member.start_time = start_time_of(process);
  member.pid_namespace = pid_namespace();
  member.state.store(static_cast<uint32_t>(State::kPresent));
}

TEST(Process, DetectsLiveProcesses) {
  EXPECT_TRUE(is_alive(getpid(), start_time_of(getpid())));
  EXPECT_NE(start_time_of(getpid()), 0U);
  EXPECT_FALSE(is_alive(getpid(), start_time_of(getpid()) + 1)) << "another process with the same id";
  pid_t lost = 0;
  {
    const SleepingProcess sleeper;
    lost = sleeper.id();
    EXPECT_TRUE(is_alive(lost, start_time_of(lost)));
    kill(lost, SIGSTOP);
    EXPECT_TRUE(is_alive(lost, start_time_of(lost))) << "a stopped process is alive";
    sleeper.kill();
    siginfo_t info = {};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(lost), &info, WEXITED | WNOWAIT), 0);
    EXPECT_FALSE(is_alive(lost, 0)) << "a zombie";
  }
  EXPECT_FALSE(is_alive(lost, 0));
}

// Process ids are meaningless if /proc belongs to another namespace.
TEST(Process, RequiresItsOwnProcMount) {
  EXPECT_NE(pid_namespace(), 0U);
  constexpr int kImpossible = 77;
  const pid_t outer = fork();
  if (outer == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(kImpossible);
    const pid_t inner = fork();
    if (inner == 0) _exit(pid_namespace() == 0 ? 0 : 1);
    int status = 1;
    waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = 1;
  waitpid(outer, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kImpossible) GTEST_SKIP() << "no permission for a pid namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The cost of a check does not depend on the number of ranks, and dead ranks are skipped.
TEST(Peers, ChecksAFewRanksAtATime) {
  constexpr int32_t kRanks = 20;
  const Memory memory(kRanks);
  Peers peers(memory.view, 5, kRanks);
  ASSERT_TRUE(peers.join());
  {
    const SleepingProcess process;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      if (rank != 5) register_rank(memory.view, rank, process.id());
    }
  }
  peers.check_liveness();
  EXPECT_EQ(peers.departures(), 8U);
  for (int32_t rank = 6; rank < 14; ++rank) EXPECT_FALSE(peers.is_present(rank)) << rank;
  const auto all_are_lost = [&peers] {
    peers.check_liveness();  // repeated calls check only once per interval
    return peers.departures() == static_cast<size_t>(kRanks - 1);
  };
  EXPECT_TRUE(backplane::test::eventually(all_are_lost)) << "not all dead ranks were detected";
  EXPECT_TRUE(peers.is_present(5));
  EXPECT_FALSE(peers.is_present(4));
}

template <typename Operation>
void expect_loss(const Operation& operation) {
  const Memory memory(2);
  Rank rank(memory.view, 0, 2, WaitPolicy{20'000, 200'000});
  const SleepingProcess peer;
  register_rank(memory.view, 1, peer.id());
  std::thread killer([&] {
    // Kill it while rank 0 sleeps, so that its own check finds the death.
    EXPECT_TRUE(eventually([&memory] { return memory.view.member(0).doorbell.sleepers.load() > 0; }))
        << "the rank does not sleep";
    peer.kill();
  });
  try {
    operation(rank);
    ADD_FAILURE() << "an operation with a rank that died succeeded";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_PEER_LOST) << why.what();
    EXPECT_EQ(why.peer_rank(), 1);
    EXPECT_NE(std::string(why.what()).find("rank 1 is lost: its process ended"), std::string::npos) << why.what();
  }
  killer.join();
}

TEST(Peers, DeathEndsAReceive) {
  expect_loss([](Rank& rank) {
    char byte = 0;
    rank.recv(1, 1, &byte, 1, nullptr, BP_OP_SYNC);
  });
}

TEST(Peers, DeathEndsALargeSend) {
  expect_loss([](Rank& rank) {
    const std::vector<std::byte> large(1 << 20);
    rank.send(1, 1, large.data(), large.size(), BP_OP_SYNC);
  });
}

TEST(Peers, DeathEndsACollective) {
  expect_loss([](Rank& rank) {
    bp_op op;
    bp_op_init(&op, BP_BARRIER);
    LazyDeadline deadline(Rank::kLong);
    rank.collectives.run(op, deadline);
  });
}

}  // namespace
}  // namespace backplane::shm::test
