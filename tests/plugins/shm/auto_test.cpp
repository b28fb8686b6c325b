// SPDX-License-Identifier: Apache-2.0
//
// When `auto` selects shm, and which memory pools its groups share.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "processes.hpp"

namespace backplane::shm::test {
namespace {

// Returns the log lines of rank 0 about the group and its subgroups.
std::string log_of_splits(const JobDirectory& place, int rank, const std::string& backend) {
  std::string log;
  const auto keep = [](void* ctx, uint32_t, const char* text) {
    const std::string line = text;
    const size_t at = line.find(" ranks on one host, ");
    if (at != std::string::npos) *static_cast<std::string*>(ctx) += line.substr(at - 1) + "\n";
  };
  try {
    bp_set_log(keep, &log);
    {
      backplane::ProcessGroup group = join(place, rank, backend);
      backplane::ProcessGroup pair = group.split(rank == 1 ? 1 : 0);
      const backplane::ProcessGroup pair_again = pair.split(0);
    }
    backplane::destroy_process_group();
    bp_set_log(nullptr, nullptr);
    return log;
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(ShmSegment, SubgroupsUseThePoolsOfTheirParent) {
  const JobDirectory place;
  const std::string log = run(
      place, [](int) { return true; }, "shm", log_of_splits)[0];
  std::istringstream lines(log);
  std::vector<std::string> each;
  for (std::string line; std::getline(lines, line);) each.push_back(line);
  ASSERT_EQ(each.size(), 3U) << log;
  EXPECT_EQ(each[0].find("3 ranks"), 0U) << log;
  EXPECT_EQ(each[0].find("older groups"), std::string::npos) << log;
  EXPECT_NE(each[1].find("; memory pools of older groups: 1"), std::string::npos) << log;
  EXPECT_NE(each[2].find("; memory pools of older groups: 2"), std::string::npos) << log;
}

// Bytes of the segment that exist; -1 if this process has no such descriptor, or several.
int64_t used_memory() {
  int64_t used = -1;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(each, gone).string().find("/memfd:backplane") != 0) continue;
    struct stat facts {};
    if (used != -1 || ::stat(each.path().c_str(), &facts) != 0) return -1;
    used = int64_t{facts.st_blocks} * 512;
  }
  return used;
}

// Rank 0 compares the memory of its log line, in MiB, with what exists before and after messages between all ranks.
std::string compare_memory(const JobDirectory& place, int rank, const std::string& backend) {
  double logged[2] = {0, 0};
  const auto keep = [](void* ctx, uint32_t, const char* text) {
    const std::string line = text;
    const size_t at = line.find("shared memory: ");
    auto* const to = static_cast<double*>(ctx);
    constexpr const char* kForm = "shared memory: %lf MiB, with messages between all ranks up to %lf MiB";
    if (at != std::string::npos) std::sscanf(line.c_str() + at, kForm, to, to + 1);
  };
  try {
    bp_set_log(keep, logged);
    backplane::ProcessGroup group = join(place, rank, backend);
    group.barrier();
    const int64_t before = used_memory();
    group.barrier();
    std::vector<int> in(4'000);
    const std::vector<int> out(in.size(), rank);
    for (int turn = 1; turn < 3; ++turn) {
      backplane::Work receiving = group.irecv(in, (rank + turn) % 3);
      group.send(out, (rank + 3 - turn) % 3);
      receiving.wait();
    }
    group.barrier();
    const int64_t after = used_memory();
    group.barrier();
    backplane::destroy_process_group();
    bp_set_log(nullptr, nullptr);
    const auto is_rounded = [](int64_t bytes, double mebibytes) {
      const double exact = static_cast<double>(bytes) / (1 << 20);
      return exact <= mebibytes && exact > mebibytes - 0.1;
    };
    if (rank != 0 || (is_rounded(before, logged[0]) && is_rounded(after, logged[1]))) return "right";
    return std::to_string(before) + " and " + std::to_string(after) + " bytes instead of " + std::to_string(logged[0]) +
           " and " + std::to_string(logged[1]) + " MiB";
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(ShmSegment, LogsHowMuchMemoryItTakes) {
  for (const char* const backend : {"shm", "shm?staging=2M"}) {
    const JobDirectory place;
    const auto value = run(
        place, [](int) { return true; }, backend, compare_memory);
    EXPECT_EQ(value, std::vector<std::string>(3, "right")) << backend;
  }
}

TEST(ShmSegment, AutoSelectsShm) {
  const JobDirectory place;
  const auto value = run(
      place, [](int) { return true; }, "auto");
  EXPECT_EQ(value, std::vector<std::string>(3, "shm"));
}

#ifdef BACKPLANE_TEST_gloo
TEST(ShmSegment, AutoSelectsShmOnOneHostOnly) {
  const JobDirectory place;
  const auto value = run(
      place, [&place](int rank) { return rank != 2 || move_to_another_host(place); }, "auto");
  if (value.empty()) GTEST_SKIP() << "no permission for a mount namespace";
  for (const std::string& each : value) EXPECT_EQ(each, "shm+gloo");
}

TEST(ShmSegment, AutoSelectsShmIfAllRanksHaveIt) {
  const JobDirectory place;
  const auto prepare = [](int rank) { return rank != 1 || setenv("BACKPLANE_PLUGINS_DENY", "shm", 1) == 0; };
  EXPECT_EQ(run(place, prepare, "auto"), std::vector<std::string>(3, "gloo"));
}

// shm is not viable if no rank can get shared memory, or one of them not enough.
TEST(ShmSegment, AutoAvoidsShmWithoutSharedMemory) {
  const std::vector<std::function<bool(int)>> hosts = {
      [](int) { return answer_with(SECCOMP_RET_ERRNO | EPERM, SYS_memfd_create); },
      [](int rank) {
        const rlimit small = {UINT64_C(1) << 20, UINT64_C(1) << 20};
        return rank != 0 || setrlimit(RLIMIT_FSIZE, &small) == 0;
      },
  };
  for (const auto& prepare : hosts) {
    const JobDirectory place;
    const auto value = run(place, prepare, "auto");
    if (value.empty()) GTEST_SKIP() << "no permission for a filter of system calls";
    for (const std::string& each : value) EXPECT_EQ(each, "gloo");
  }
}
#endif

}  // namespace
}  // namespace backplane::shm::test
