// SPDX-License-Identifier: Apache-2.0
//
// Reading other processes where the system permits it, and the decisions of CopyTuner.
#include "cross_memory.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "fabric.hpp"
#include "memory.hpp"

namespace backplane::shm::test {
namespace {

// A segment for two ranks, the second of which is a process of its own.
class TwoProcesses {
 public:
  enum class Comes { kAtOnce, kWhenTold };
  explicit TwoProcesses(Comes comes = Comes::kAtOnce)
      : file_(make_anonymous(Layout(2).size())), mapping_(file_.get(), Layout(2).size()) {
    EXPECT_EQ(madvise(mapping_.data(), Layout(2).size(), MADV_DOFORK), 0);
    view.emplace(mapping_.data(), 2);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0);
    child_ = fork();
    if (child_ == 0) be_the_other();
    close(ends_[1]);
    if (comes == Comes::kAtOnce) come();
  }
  ~TwoProcesses() {
    end();
    close(ends_[0]);
  }
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  // The other rank joins.
  void come() {
    char told = 'x';
    EXPECT_EQ(send(ends_[0], &told, 1, MSG_NOSIGNAL), 1);
    EXPECT_EQ(read(ends_[0], &told, 1), 1);
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
  [[noreturn]] void be_the_other() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with the test
    close(ends_[0]);
    char told = 0;
    if (read(ends_[1], &told, 1) != 1) _exit(1);
    const CrossMemory mine(*view, 1, file_.get(), Cma::kOn);
    word = kTheirs;
    if (write(ends_[1], &told, 1) != 1) _exit(1);
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
  both.view->member(1).pid = getppid();  // must not matter
  CrossMemory mine(*both.view, 0, both.file(), Cma::kOn);
  ASSERT_TRUE(mine.can_read(1)) << mine.refusal();
  EXPECT_EQ(read_word(mine, both), TwoProcesses::kTheirs);
  EXPECT_EQ(mine.refusal(), "");
  std::byte got{};
  EXPECT_FALSE(mine.read(1, nullptr, &got, 1));
  EXPECT_TRUE(mine.can_read(1)) << "one address is not all of them";
  both.end();
  EXPECT_EQ(read_word(mine, both), 0U);
  EXPECT_FALSE(mine.can_read(1));
}

// Whatever it publishes, no reader is directed to another process or trusts data from one.
TEST(CrossMemory, RejectsForgedCookies) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  const std::string refused = "memory of rank 1 is staged instead of read: Bad address";
  for (const uint64_t address : {UINT64_C(0), UINT64_C(1) << 20, ~UINT64_C(0)}) {
    const TwoProcesses both;
    both.view->member(1).cookie_address = address;
    CrossMemory mine(*both.view, 0, both.file(), Cma::kOn);
    EXPECT_FALSE(mine.can_read(1));
    EXPECT_NE(mine.refusal().find(refused), std::string::npos) << mine.refusal();
  }
  const TwoProcesses both;
  both.view->member(1).cookie += 1;
  CrossMemory mine(*both.view, 0, both.file(), Cma::kOn);
  EXPECT_FALSE(mine.can_read(1));
  EXPECT_NE(mine.refusal().find(refused), std::string::npos) << mine.refusal();
}

// A rank that has not joined yet may join later.
TEST(CrossMemory, RetriesRanksWithoutALock) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  TwoProcesses both(TwoProcesses::Comes::kWhenTold);
  CrossMemory mine(*both.view, 0, both.file(), Cma::kOn);
  EXPECT_FALSE(mine.can_read(1));
  EXPECT_EQ(mine.refusal(), "");
  both.come();
  EXPECT_TRUE(mine.can_read(1)) << mine.refusal();
}

// A query in progress must not look like an answer.
TEST(CrossMemory, IsThreadSafe) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (int round = 0; round < 20 * kEffort; ++round) {
    for (const bool is_forged : {false, true}) {
      const Memory memory(2);
      const CrossMemory theirs(memory.view, 1, -1, Cma::kOn);
      if (is_forged) memory.view.member(1).cookie += 1;
      CrossMemory mine(memory.view, 0, -1, Cma::kOn);
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
    CrossMemory mine(*both.view, 0, both.file(), Cma::kOn);
    EXPECT_FALSE(mine.can_read(1));
    EXPECT_NE(mine.refusal().find("Operation not permitted"), std::string::npos) << mine.refusal();
  }).join();
}

// Each rank decides for itself. Here only one may read.
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
      const auto& data = memory.view.channel(receiver, 1 - receiver).data;
      return std::all_of(data.begin(), data.end(), [](std::byte each) { return each == std::byte{0}; });
    };
    EXPECT_FALSE(is_untouched(1));
    EXPECT_TRUE(cma == Cma::kAuto || !may_read() || is_untouched(0));
  }
}

// The log of a receiver: the times of messages from rank 2, and later that rank 1 cannot be read.
std::vector<std::string> told_if_refused_in(uint32_t refused) {
  constexpr uint64_t kSize = 20'000;
  const Memory memory(3);
  std::mutex mutex;
  std::vector<std::string> told;
  const auto log = [&mutex, &told](const std::string& text) {
    const std::lock_guard lock(mutex);
    told.push_back(text);
  };
  Rank receiver(memory.view, 0, 3, WaitPolicy{20'000, 0}, nullptr, Cma::kAuto, log);
  const Rank played(memory.view, 1, 3, WaitPolicy{20'000, 0}, nullptr, Cma::kAuto);
  Rank sender(memory.view, 2, 3, WaitPolicy{20'000, 0}, nullptr, Cma::kAuto);
  memory.view.member(1).cookie += 1;
  std::vector<std::byte> out(kSize);
  std::vector<std::byte> in(kSize);
  std::vector<std::byte> never(kSize);
  const auto waiter = receiver.recv(1, 1, never.data(), kSize);
  for (uint32_t round = 1; round <= 2 * CopyTuner::kTries; ++round) {
    const auto sending = sender.send(0, 1, out.data(), kSize);
    const auto receiving = receiver.recv(2, 1, in.data(), kSize);
    receiver.messages.poll(Poll::kFull);
    sender.messages.poll(Poll::kFull);
    if (round == refused) announce(memory, 0, kSize, location_in_process(out.data()));
    receiver.messages.poll(Poll::kFull);
    Rank::finish(receiving);
    Rank::finish(sending);
  }
  waiter->cancel();
  receiver.messages.stop();
  return told;
}

// Both in one batch, unless the progress thread is faster.
TEST(CrossMemory, LogsEverything) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  for (const uint32_t round : {2 * CopyTuner::kPerTurn, 2 * CopyTuner::kTries}) {
    const std::vector<std::string> told = told_if_refused_in(round);
    const auto is_told = [&told](const char* what) {
      return std::any_of(told.begin(), told.end(), [what](const std::string& each) { return each.starts_with(what); });
    };
    EXPECT_TRUE(is_told("process_vm_readv: memory of rank 1 is staged"));
    EXPECT_TRUE(is_told("messages from 16 KiB: "));
  }
}

// Records a time for one of the next ones. Returns true if that completes a new decision of this rank.
bool takes(CopyTuner& tuner, uint64_t size, bool reads, int64_t ns) {
  return tuner.record(size, reads, ns) && tuner.decide(size, tuner.best(size));
}

// Both decisions are tried, the faster one is used, and both are tried again later.
TEST(CrossMemory, MessagesTryBothWaysAgain) {
  if (!may_read()) GTEST_SKIP() << "process_vm_readv is forbidden here";
  constexpr uint64_t kSize = 20'000;
  const Memory memory(2);
  Rank receiver(memory.view, 0, 2, WaitPolicy{20'000, 0}, nullptr, Cma::kAuto);
  Rank sender(memory.view, 1, 2, WaitPolicy{20'000, 0}, nullptr, Cma::kAuto);
  std::vector<std::byte> out(kSize);
  std::vector<std::byte> in(kSize);
  std::vector<bool> are_read;
  for (uint32_t round = 0; round < 4 * CopyTuner::kTries + CopyTuner::kUsesUntilRetry; ++round) {
    const auto sending = sender.send(0, 1, out.data(), kSize);
    const auto receiving = receiver.recv(1, 1, in.data(), kSize);
    receiver.messages.poll(Poll::kFull);
    sender.messages.poll(Poll::kFull);
    receiver.messages.poll(Poll::kFull);
    Rank::finish(receiving);
    Rank::finish(sending);
    const Head& access = memory.view.channel(1, 0).heads[round % kHeads];
    ASSERT_EQ(access.kind_and_length & 0xffU, static_cast<uint32_t>(Kind::kReady));
    are_read.push_back(access.control.size == 0);
  }
  constexpr uint32_t kFirst = 2 * CopyTuner::kPerTurn;
  const auto is_tried = [](auto begin) { return std::count(begin, begin + kFirst, true) == CopyTuner::kPerTurn; };
  const auto begin = are_read.begin();
  const bool needs_full_trial = is_tried(begin + kFirst);  // otherwise the first tries were conclusive
  const auto uses = begin + (needs_full_trial ? 2 * CopyTuner::kTries : kFirst);
  const auto again = uses + CopyTuner::kUsesUntilRetry;
  EXPECT_TRUE(is_tried(begin));
  EXPECT_EQ(std::count(begin, uses, true), std::count(begin, uses, false));
  EXPECT_EQ(std::count(uses, again, *uses), CopyTuner::kUsesUntilRetry);
  EXPECT_TRUE(is_tried(again));
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
      decides = takes(tuner, size, reads, reads == (size > 100'000) ? ns : 2 * ns - 10'000);
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
    takes(tuner, kSize, tuner.reads(kSize), tuner.reads(kSize) ? 2'000'000 : 1'000'000);
  }
  EXPECT_EQ(tries, 2 * CopyTuner::kLargeTries);
  EXPECT_FALSE(tuner.reads(kSize));
  EXPECT_TRUE(tuner.is_open(kSize - 1));
}

// As if the host had been busy during the first trial.
TEST(CopyTuner, RepeatsTheTrial) {
  constexpr uint64_t kSize = UINT64_C(1) << 20;
  CopyTuner tuner;
  const auto try_both = [&tuner](int64_t ns_of_reading) {
    int decisions = 0;
    while (tuner.is_open(kSize)) {
      const bool reads = tuner.reads(kSize);
      if (takes(tuner, kSize, reads, reads ? ns_of_reading : 100'000)) ++decisions;
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
  EXPECT_EQ(try_both(60'000), 0);  // as before
  EXPECT_TRUE(tuner.reads(kSize));
}

// Messages of many senders may overlap.
TEST(CopyTuner, IgnoresTimesOfTheOtherWay) {
  constexpr uint64_t kSize = UINT64_C(1) << 20;
  for (const bool are_read : {true, false}) {
    CopyTuner tuner;
    for (uint32_t i = 0; i < 4 * CopyTuner::kTries; ++i) tuner.record(kSize, are_read, 1'000'000);
    EXPECT_TRUE(tuner.is_open(kSize));
    EXPECT_NE(tuner.reads(kSize), are_read) << "it is the other one's turn";
  }
}

TEST(CopyTuner, EndsEarlyIfStagingIsFarSlower) {
  for (const bool oversubscribed : {false, true}) {
    for (const auto& [size, per_turn] :
         {std::pair(UINT64_C(1) << 20, CopyTuner::kPerTurn), std::pair(CopyTuner::kLarge, 1U)}) {
      CopyTuner tuner(Cma::kAuto, oversubscribed);
      uint32_t tries = 0;
      for (; tuner.is_open(size); ++tries) {
        takes(tuner, size, tuner.reads(size), tuner.reads(size) ? 1'000'000 : 2'100'000);
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
    takes(tuner, kSize, reads, reads ? 40'000 : staged_in_a_row <= CopyTuner::kTries / 2 + 2 ? 20'000 : 60'000);
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
  EXPECT_FALSE(tuner.is_decided(kSize)) << "others have found that they are close";
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
