// SPDX-License-Identifier: Apache-2.0
//
// Reading other processes, with and without the permission of the system.
#include "cross_memory.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "memory.hpp"
#include "ranks.hpp"

namespace backplane::shm::test {
namespace {

const Layout kLayout(2, Staging::kLeast);

// A segment for two ranks, the second of which is a child process.
class TwoProcesses {
 public:
  enum class Join { kAtOnce, kLater };
  explicit TwoProcesses(Join when = Join::kAtOnce)
      : file_(make_anonymous(kLayout.size())), mapping_(file_.get(), kLayout.size()) {
    EXPECT_EQ(madvise(mapping_.data(), kLayout.size(), MADV_DOFORK), 0);
    view.emplace(mapping_.data(), kLayout);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0);
    child_ = fork();
    if (child_ == 0) run_other_rank();
    close(ends_[1]);
    if (when == Join::kAtOnce) join();
  }
  ~TwoProcesses() {
    end();
    close(ends_[0]);
  }
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  // The other rank joins.
  void join() {
    char signal = 'x';
    EXPECT_EQ(send(ends_[0], &signal, 1, MSG_NOSIGNAL), 1);
    EXPECT_EQ(read(ends_[0], &signal, 1), 1);
  }
  void end() {
    if (child_ > 0 && kill(child_, SIGKILL) == 0) waitpid(child_, nullptr, 0);
    child_ = -1;
  }
  int file() const { return file_.get(); }

  static constexpr uint64_t kTheirs = 17;
  uint64_t word = 0;  // differs between the processes, at the same address
  std::optional<View> view;

 private:
  [[noreturn]] void run_other_rank() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with the test
    close(ends_[0]);
    char signal = 0;
    if (read(ends_[1], &signal, 1) != 1) _exit(1);
    const CrossMemory mine(*view, 1, file_.get(), {});
    word = kTheirs;
    if (write(ends_[1], &signal, 1) != 1) _exit(1);
    for (;;) poll(nullptr, 0, -1);
  }

  const sdk::Descriptor file_;
  const Mapping mapping_;
  std::array<int, 2> ends_{};  // of this process, of the other
  pid_t child_ = -1;
};

uint64_t read_word(CrossMemory& cross, const TwoProcesses& both) {
  uint64_t got = 0;
  const auto* const address = reinterpret_cast<const std::byte*>(&both.word);
  return cross.read(1, address, reinterpret_cast<std::byte*>(&got), sizeof got) ? got : 0;
}

TEST(CrossMemory, ReadsTheProcessNamedByTheKernel) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  TwoProcesses both;
  both.view->member(1).pid = getppid();  // must have no effect
  CrossMemory mine(*both.view, 0, both.file(), {});
  ASSERT_TRUE(mine.can_read(1)) << mine.refusal();
  EXPECT_EQ(read_word(mine, both), TwoProcesses::kTheirs);
  EXPECT_EQ(mine.refusal(), "");
  std::byte got{};
  EXPECT_FALSE(mine.read(1, nullptr, &got, 1));
  EXPECT_TRUE(mine.can_read(1)) << "one unreadable address does not forbid others";
  both.end();
  EXPECT_EQ(read_word(mine, both), 0U);
  EXPECT_FALSE(mine.can_read(1));
}

// A rank cannot make readers use data of another process.
TEST(CrossMemory, RejectsForgedCookies) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  const std::string refused = "memory of rank 1 is staged instead of read: Bad address";
  for (const uint64_t address : {UINT64_C(0), UINT64_C(1) << 20, ~UINT64_C(0)}) {
    const TwoProcesses both;
    both.view->member(1).cookie_address = address;
    CrossMemory mine(*both.view, 0, both.file(), {});
    EXPECT_FALSE(mine.can_read(1));
    EXPECT_NE(mine.refusal().find(refused), std::string::npos) << mine.refusal();
  }
  const TwoProcesses both;
  both.view->member(1).cookie += 1;
  CrossMemory mine(*both.view, 0, both.file(), {});
  EXPECT_FALSE(mine.can_read(1));
  EXPECT_NE(mine.refusal().find(refused), std::string::npos) << mine.refusal();
}

// A rank that has not joined yet may join later.
TEST(CrossMemory, RetriesRanksWithoutALock) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  TwoProcesses both(TwoProcesses::Join::kLater);
  CrossMemory mine(*both.view, 0, both.file(), {});
  EXPECT_FALSE(mine.can_read(1));
  EXPECT_EQ(mine.refusal(), "");
  both.join();
  EXPECT_TRUE(mine.can_read(1)) << mine.refusal();
}

// Concurrent queries must not return intermediate results.
TEST(CrossMemory, IsThreadSafe) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (int round = 0; round < 20 * kEffort; ++round) {
    for (const bool is_forged : {false, true}) {
      const Memory memory(2);
      const CrossMemory theirs(memory.view, 1, -1, {});
      if (is_forged) memory.view.member(1).cookie += 1;
      CrossMemory mine(memory.view, 0, -1, {});
      std::vector<std::thread> threads;
      std::atomic<int> missing = 3;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&mine, &missing, is_forged] {
          --missing;
          while (missing.load() > 0) sched_yield();
          const std::byte there{7};
          std::byte here{};
          EXPECT_EQ(mine.can_read(1), !is_forged);
          EXPECT_TRUE(is_forged || mine.read(1, &there, &here, 1));
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

TEST(CrossMemory, IsNotUsedWhereForbidden) {
  if (!may_forbid_reading()) GTEST_SKIP() << "there is no seccomp";
  TwoProcesses both;
  std::thread([&both] {
    EXPECT_TRUE(forbid_reading());
    CrossMemory mine(*both.view, 0, both.file(), {});
    EXPECT_FALSE(mine.can_read(1));
    EXPECT_NE(mine.refusal().find("Operation not permitted"), std::string::npos) << mine.refusal();
  }).join();
}

// Each rank decides separately. Here only one may read.
TEST(CrossMemory, MessagesAreStagedWhereForbidden) {
  if (!may_forbid_reading()) GTEST_SKIP() << "there is no seccomp";
  for (const Cma cma : {Cma::kAuto, Cma::kOn}) {
    const Memory memory(2);
    run_ranks(
        memory, 2, WaitPolicy{20'000, 200'000},
        [](Rank& rank) {
          constexpr uint64_t kSize = 400'000;
          EXPECT_TRUE(rank.id == 0 || forbid_reading());
          for (uint64_t round = 0; round < 4; ++round) {
            std::vector<std::byte> out(kSize);
            std::vector<std::byte> in(kSize);
            fill(out, round);
            const auto receiving = rank.recv(1 - rank.id, round, in.data(), kSize);
            Rank::finish(rank.send(1 - rank.id, round, out.data(), kSize));
            Rank::finish(receiving);
            ASSERT_TRUE(is_filled(in, kSize, round));
          }
        },
        {}, cma);
    const auto is_untouched = [&memory](int32_t receiver) {
      const Ring ring = memory.view.ring(receiver, 1 - receiver);
      return std::all_of(ring.data, ring.data + ring.size, [](std::byte each) { return each == std::byte{0}; });
    };
    EXPECT_FALSE(is_untouched(1));
    EXPECT_TRUE(cma == Cma::kAuto || !may_read() || is_untouched(0));
  }
}

TEST(CrossMemory, ReadsTheSizesForWhichItIsFaster) {
  const std::optional<ReadLimits> spinning = read_limits(Cma::kAuto, false, true);
  const std::optional<ReadLimits> yielding = read_limits(Cma::kAuto, false, false);
  const std::optional<ReadLimits> always = read_limits(Cma::kOn, true, false);
  ASSERT_TRUE(spinning && yielding && always);
  EXPECT_FALSE(read_limits(Cma::kAuto, true, true));
  EXPECT_FALSE(read_limits(Cma::kOff, false, true));
  EXPECT_FALSE(spinning->block(kEagerLimit) || spinning->message(kEagerLimit));
  EXPECT_TRUE(spinning->block(kEagerLimit + 1) && spinning->message(kEagerLimit + 1));
  EXPECT_FALSE(yielding->block(kMaxEager) || yielding->message(kMaxEager));
  EXPECT_TRUE(yielding->block(kMaxEager + 1) && yielding->message(kMaxEager + 1));
  EXPECT_TRUE(spinning->message(512 << 10) && spinning->block(UINT64_C(1) << 40));
  EXPECT_FALSE(spinning->message((512 << 10) + 1));
  EXPECT_TRUE(always->message(kEagerLimit + 1) && always->message(UINT64_C(1) << 40));
}

// The replies to messages of these sizes: whether each was read in the sender's process.
std::vector<bool> are_read(const std::vector<uint64_t>& sizes, const WaitPolicy& policy) {
  const Memory memory(2);
  Rank receiver(memory.view, 0, 2, policy, nullptr, Cma::kAuto);
  Rank sender(memory.view, 1, 2, policy, nullptr, Cma::kAuto);
  std::vector<bool> read;
  for (const uint64_t size : sizes) {
    std::vector<std::byte> out(size);
    std::vector<std::byte> in(size);
    fill(out, size);
    const Head& reply = memory.view.channel(1, 0).heads[read.size()];
    const auto sending = sender.send(0, 1, out.data(), size);
    const auto receiving = receiver.recv(1, 1, in.data(), size);
    while (receiving && !receiving->wait(0)) {
      sender.messages.poll(Poll::kFull);
      receiver.messages.poll(Poll::kFull);
    }
    Rank::finish(sending);
    EXPECT_TRUE(is_filled(in, size, size));
    EXPECT_EQ(reply.kind_and_length & 0xffU, static_cast<uint32_t>(Kind::kReady));
    read.push_back(reply.control.size == 0);
  }
  return read;
}

TEST(CrossMemory, LongerMessagesAreStaged) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  EXPECT_EQ(are_read({9'000, 512 << 10, (512 << 10) + 1}, {20'000, 0}), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(are_read({65'537, 512 << 10, (512 << 10) + 1}, {0, 0}), (std::vector<bool>{true, true, false}));
}

}  // namespace
}  // namespace backplane::shm::test
