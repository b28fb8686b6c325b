// SPDX-License-Identifier: Apache-2.0
#include "peers.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric.hpp"
#include "process.hpp"

namespace backplane::shm::test {
namespace {

// A process that does nothing until it is killed.
class Sleeper {
 public:
  Sleeper() : id_(fork()) {
    if (id_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // also if the test crashes
    for (;;) pause();
  }
  ~Sleeper() {
    kill();
    waitpid(id_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  pid_t id() const { return id_; }
  void kill() const { ::kill(id_, SIGKILL); }

 private:
  pid_t id_;
};

// Makes a rank of a process that knows nothing of it.
void enrol(const View& view, int32_t rank, pid_t process) {
  Member& member = view.member(rank);
  member.pid = process;
  member.born = born(process);
  member.pid_namespace = pid_namespace();
  member.state.store(static_cast<uint32_t>(State::kPresent));
}

TEST(Process, KnowsWhoLives) {
  EXPECT_TRUE(is_alive(getpid(), born(getpid())));
  EXPECT_NE(born(getpid()), 0U);
  EXPECT_FALSE(is_alive(getpid(), born(getpid()) + 1)) << "another process with the same number";
  pid_t gone = 0;
  {
    const Sleeper sleeper;
    gone = sleeper.id();
    EXPECT_TRUE(is_alive(gone, born(gone)));
    kill(gone, SIGSTOP);
    EXPECT_TRUE(is_alive(gone, born(gone))) << "standing still is not death";
    sleeper.kill();
    siginfo_t info = {};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(gone), &info, WEXITED | WNOWAIT), 0);
    EXPECT_FALSE(is_alive(gone, 0)) << "a zombie";
  }
  EXPECT_FALSE(is_alive(gone, 0));
}

template <typename Operation>
void expect_loss(const Operation& operation) {
  const Memory memory(2);
  Rank rank(memory.view, 0, 2, Patience{20'000, 200'000});
  const Sleeper peer;
  enrol(memory.view, 1, peer.id());
  std::thread killer([&] {
    // Not before rank 0 sleeps, so that it is its own look that finds the death.
    while (memory.view.member(0).bell.sleepers.load() == 0) sched_yield();
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
    bp_op op = {};
    op.kind = BP_BARRIER;
    Limit limit(Rank::kLong);
    rank.collectives.run(op, limit);
  });
}

}  // namespace
}  // namespace backplane::shm::test
