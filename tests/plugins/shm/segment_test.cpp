// SPDX-License-Identifier: Apache-2.0
//
// Processes that attach through a file store: on one host, in separate pid namespaces, and as if on other hosts.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "processes.hpp"
#include "support/eventually.hpp"

namespace backplane::shm::test {
namespace {

// Repeats an all_reduce until rank 2 is killed in one of them.
std::string outlive_rank_2(const JobDirectory& place, int rank, const std::string& backend) {
  try {
    backplane::ProcessGroup group = join(place, rank, backend);
    backplane::Memory<int> shared = group.allocate<int>(1'000'000);
    std::fill(shared.begin(), shared.end(), 0);
    if (!shared.native()) return "no shared memory";
    for (int round = 0;; ++round) {
      if (rank == 2 && round == 20) {
        std::thread([] { raise(SIGKILL); }).detach();  // during a later all_reduce
      }
      group.all_reduce(shared);
    }
  } catch (const std::exception& e) {
    return e.what();
  }
}

// Large messages around a ring, in ordinary memory.
std::string pass_around(const JobDirectory& place, int rank, const std::string& backend) {
  try {
    backplane::ProcessGroup group = join(place, rank, backend);
    for (int round = 0; round < 16; ++round) {
      const std::vector<int> out(200'000, rank + round);
      std::vector<int> in(out.size());
      backplane::Work receiving = group.irecv(in, (rank + 2) % 3);
      group.send(out, (rank + 1) % 3);
      receiving.wait();
      if (in != std::vector<int>(out.size(), (rank + 2) % 3 + round)) return "wrong";
    }
    backplane::destroy_process_group();
    return "right";
  } catch (const std::exception& e) {
    return e.what();
  }
}

// The same, until rank 2 is killed.
std::string pass_around_without_rank_2(const JobDirectory& place, int rank, const std::string& backend) {
  try {
    backplane::ProcessGroup group = join(place, rank, backend);
    const std::vector<int> out(3'000'000, rank);
    std::vector<int> in(out.size());
    for (int round = 0;; ++round) {
      if (rank == 2 && round == 5) std::thread([] { raise(SIGKILL); }).detach();
      backplane::Work receiving = group.irecv(in, (rank + 2) % 3);
      group.send(out, (rank + 1) % 3);
      receiving.wait();
    }
  } catch (const std::exception& e) {
    return e.what();
  }
}

// Gathers ordinary buffers until rank 2 is killed.
std::string gather_without_rank_2(const JobDirectory& place, int rank, const std::string& backend) {
  try {
    backplane::ProcessGroup group = join(place, rank, backend);
    const std::vector<int> in(1'000'000, rank);
    std::vector<int> out(in.size() * 3);
    for (int round = 0;; ++round) {
      if (rank == 2 && round == 10) std::thread([] { raise(SIGKILL); }).detach();
      group.all_gather(in, out);
      if (out[0] != 0 || out[out.size() - 1] != 2) return "wrong";
    }
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::vector<std::string> shared_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("backplane-")) names.push_back(name);
  }
  return names;
}

// Concurrent tests have files there as well, for a short time.
bool leaves_nothing() {
  const std::vector<std::string> there = shared_files();
  return backplane::test::eventually([&there] {
    return std::none_of(there.begin(), there.end(),
                        [](const std::string& name) { return std::filesystem::exists("/dev/shm/" + name); });
  });
}

TEST(ShmSegment, OneHost) {
  const JobDirectory place;
  EXPECT_EQ(run(place, [](int) { return true; }), std::vector<std::string>(3, "right"));
  EXPECT_TRUE(leaves_nothing());
}

// Process ids differ between the namespaces, so they attach through /dev/shm.
TEST(ShmSegment, SeparatePidNamespaces) {
  const JobDirectory place;
  const auto value = run(place, [](int rank) { return rank == 0 || unshare(CLONE_NEWPID) == 0; });
  if (value.empty()) GTEST_SKIP() << "no permission for a pid namespace";
  for (const std::string& each : value) EXPECT_EQ(each, "right");
  EXPECT_TRUE(leaves_nothing());
}

TEST(ShmSegment, OtherHost) {
  const JobDirectory place;
  const auto value = run(place, [&place](int rank) { return rank != 2 || move_to_another_host(place); });
  if (value.empty()) GTEST_SKIP() << "no permission for a mount namespace";
  for (const std::string& each : value) {
    EXPECT_NE(each.find("rank 2 runs on another host than rank 0"), std::string::npos) << each;
  }
}

// A rank that shares neither process ids nor /dev/shm cannot join and reports why.
TEST(ShmSegment, NoSharedNamespace) {
  const JobDirectory place;
  const auto value = run(place, [](int rank) {
    return rank != 2 || (unshare(CLONE_NEWPID | CLONE_NEWNS) == 0 &&
                         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         mount("none", "/dev/shm", "tmpfs", 0, nullptr) == 0);
  });
  if (value.empty()) GTEST_SKIP() << "no permission for namespaces";
  for (const std::string& each : value) EXPECT_NE(each.find("rank 2 can open neither"), std::string::npos) << each;
  EXPECT_TRUE(leaves_nothing());
}

TEST(ShmSegment, KilledRankLeavesNoFiles) {
  const JobDirectory place;
  const auto value = run(
      place, [](int) { return true; }, "shm", outlive_rank_2);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_NE(value[rank].find("rank 2"), std::string::npos) << value[rank];
    EXPECT_NE(value[rank].find("is lost"), std::string::npos) << value[rank];
  }
  EXPECT_EQ(value[2], "");
  EXPECT_TRUE(leaves_nothing());
}

// Without room for heaps on rank 0, all ranks use ordinary memory.
TEST(ShmSegment, LimitsFallBackToOrdinaryMemory) {
  for (const auto limited : {RLIMIT_FSIZE, RLIMIT_AS}) {
    const JobDirectory place;
    const auto prepare = [limited](int) {
      const rlimit enough = {UINT64_C(4) << 30, UINT64_C(4) << 30};
      return setrlimit(limited, &enough) == 0;
    };
    EXPECT_EQ(run(place, prepare), std::vector<std::string>(3, "right, but ordinary"));
  }
}

// If one rank cannot map heaps, no rank has them.
TEST(ShmSegment, LimitsOfOneRankApplyToAll) {
  const JobDirectory place;
  const auto prepare = [](int rank) {
    const rlimit enough = {UINT64_C(4) << 30, UINT64_C(4) << 30};
    return rank != 1 || setrlimit(RLIMIT_AS, &enough) == 0;
  };
  EXPECT_EQ(run(place, prepare), std::vector<std::string>(3, "right, but ordinary"));
}

// A small /dev/shm for this process and its children.
class SmallSharedMemory {
 public:
  explicit SmallSharedMemory(const char* size)
      : is_mounted_(unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                    mount("none", "/dev/shm", "tmpfs", 0, size) == 0) {}
  ~SmallSharedMemory() {
    if (is_mounted_) umount("/dev/shm");
  }
  SmallSharedMemory(const SmallSharedMemory&) = delete;
  SmallSharedMemory& operator=(const SmallSharedMemory&) = delete;

  bool is_mounted() const { return is_mounted_; }

 private:
  const bool is_mounted_;
};

// An error on all ranks and no signal, whether memory runs out at the first page, for rank 0, or for later ranks.
TEST(ShmSegment, NoMemoryLeft) {
  for (const char* const size : {"size=4k", "size=64k", "size=800k"}) {
    const SmallSharedMemory small(size);
    if (!small.is_mounted()) GTEST_SKIP() << "no permission for a mount namespace";
    const JobDirectory place;
    const auto value = run(place, [](int rank) { return rank == 0 || unshare(CLONE_NEWPID) == 0; });
    if (value.empty()) GTEST_SKIP() << "no permission for a pid namespace";
    for (const std::string& each : value) EXPECT_NE(each.find("no memory for"), std::string::npos) << size << each;
    EXPECT_TRUE(leaves_nothing());
  }
}

// The slots fit, the rings of messages do not.
TEST(ShmSegment, NoMemoryLeftForMessages) {
  const SmallSharedMemory small("size=13m");
  if (!small.is_mounted()) GTEST_SKIP() << "no permission for a mount namespace";
  const JobDirectory place;
  const auto value = run(
      place, [](int rank) { return rank == 0 || unshare(CLONE_NEWPID) == 0; }, "shm?staging=4M", pass_around);
  if (value.empty()) GTEST_SKIP() << "no permission for a pid namespace";
  const auto has_told = [](const std::string& each) {
    return each.find("no memory for messages") != std::string::npos;
  };
  EXPECT_TRUE(std::any_of(value.begin(), value.end(), has_told)) << value[0] << "; " << value[1] << "; " << value[2];
  for (const std::string& each : value) EXPECT_NE(each, "right");
  EXPECT_TRUE(leaves_nothing());
}

// Rank 0's staging holds, whatever the others ask for.
TEST(ShmSegment, RanksAgreeOnStaging) {
  const auto differing = [](const JobDirectory& place, int rank, const std::string&) {
    constexpr const char* kStaging[] = {"shm?staging=3M&cma=off", "shm?staging=16M&cma=off", "shm?cma=off"};
    return pass_around(place, rank, kStaging[rank]);
  };
  const JobDirectory place;
  for (const std::string& each : run(
           place, [](int) { return true; }, "", differing)) {
    EXPECT_EQ(each, "right");
  }
  EXPECT_TRUE(leaves_nothing());
}

TEST(ShmSegment, RanksMayDifferInCma) {
  const auto differing = [](const JobDirectory& place, int rank, const std::string&) -> std::string {
    constexpr const char* kCma[] = {"shm?cma=on", "shm?cma=off", "shm"};
    try {
      backplane::ProcessGroup group = join(place, rank, kCma[rank]);
      for (int round = 0; round < 3; ++round) {
        const std::vector<int> mine(20'000, 10 * round + rank);
        std::vector<int> all(60'000);
        group.all_gather(mine, all);
        for (size_t i = 0; i < all.size(); ++i) {
          if (all[i] != 10 * round + static_cast<int>(i / mine.size())) return "wrong";
        }
      }
      backplane::destroy_process_group();
      return "right";
    } catch (const std::exception& e) {
      return e.what();
    }
  };
  const JobDirectory place;
  EXPECT_EQ(run(
                place, [](int) { return true; }, "", differing),
            std::vector<std::string>(3, "right"));
  EXPECT_TRUE(leaves_nothing());
}

bool answer_reads_with(unsigned action) { return answer_with(action, SYS_process_vm_readv); }

// Large messages arrive whether all, some or no ranks may read other processes.
TEST(ShmSegment, LargeMessages) {
  const std::vector<std::function<bool(int)>> hosts = {
      [](int) { return true; },
      [](int rank) { return rank == 0 || unshare(CLONE_NEWPID) == 0; },
      [](int rank) { return rank != 1 || answer_reads_with(SECCOMP_RET_ERRNO | EPERM); },
      [](int) { return answer_reads_with(SECCOMP_RET_ERRNO | ENOSYS); },
      [](int rank) { return rank != 0 || prctl(PR_SET_DUMPABLE, 0) == 0; },
  };
  for (const char* const backend : {"shm", "shm?cma=on", "shm?cma=off"}) {
    for (const auto& prepare : hosts) {
      const JobDirectory place;
      for (const std::string& value : run(place, prepare, backend, pass_around)) EXPECT_EQ(value, "right") << backend;
    }
  }
  EXPECT_TRUE(leaves_nothing());
}

// Rank 1 is killed.
TEST(ShmSegment, LargeMessagesWithCmaOn) {
  const auto fragile = [](int rank) { return rank != 1 || answer_reads_with(SECCOMP_RET_KILL_PROCESS); };
  const JobDirectory on;
  const auto value = run(on, fragile, "shm?cma=on", pass_around);
  if (value.empty()) GTEST_SKIP() << "no permission for a filter of system calls";
  const JobDirectory off;
  EXPECT_EQ(run(off, fragile, "shm?cma=off", pass_around), std::vector<std::string>(3, "right"));
  EXPECT_EQ(value[1], "");
  EXPECT_NE(value[0].find("rank 1"), std::string::npos) << value[0];
}

TEST(ShmSegment, RankKilledWhileItIsReadIsLost) {
  for (const auto part : {pass_around_without_rank_2, gather_without_rank_2}) {
    for (const char* const backend : {"shm?cma=on", "shm?cma=off"}) {
      const JobDirectory place;
      const auto value = run(
          place, [](int) { return true; }, backend, part);
      for (size_t rank = 0; rank < 2; ++rank) {
        EXPECT_NE(value[rank].find("rank 2"), std::string::npos) << value[rank];
        EXPECT_NE(value[rank].find("is lost"), std::string::npos) << value[rank];
      }
      EXPECT_EQ(value[2], "");
    }
  }
}

}  // namespace
}  // namespace backplane::shm::test
