// SPDX-License-Identifier: Apache-2.0
//
// When `auto` selects shm, and which memory pools its groups share.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
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
