// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "backplane/sdk/failure.hpp"
#include "heap.hpp"
#include "segment.hpp"

namespace backplane::shm::test {
namespace {

// Other users can neither open the file nor guess its name.
TEST(NamedFile, IsPrivateAndRemovedWithTheObject) {
  const std::string prefix = "/dev/shm/backplane-";
  std::set<std::string> paths;
  for (const mode_t mask : {0000, 0077}) {
    const mode_t before = ::umask(mask);
    const NamedFile file(kPage);
    ::umask(before);
    ASSERT_TRUE(file.path().starts_with(prefix)) << file.path();
    EXPECT_EQ(file.path().size(), prefix.size() + 32) << file.path();
    EXPECT_EQ(file.path().find_first_not_of("0123456789abcdef", prefix.size()), std::string::npos) << file.path();
    struct stat facts {};
    ASSERT_EQ(::stat(file.path().c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0600U);
    EXPECT_EQ(facts.st_uid, ::geteuid());
    EXPECT_EQ(facts.st_size, static_cast<off_t>(kPage));
    paths.insert(file.path());
  }
  EXPECT_EQ(paths.size(), 2U) << "two files have the same name";
  for (const std::string& path : paths) EXPECT_NE(::access(path.c_str(), F_OK), 0) << path;
}

// A file is an orphan only after its creator has ended.
TEST(NamedFile, RemovesFilesOfKilledProcesses) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t maker = ::fork();
  if (maker == 0) {
    const NamedFile file(kPage);
    if (::write(ends[1], file.path().data(), file.path().size()) < 0) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(maker, &status, 0), maker);
  ::close(ends[1]);
  std::array<char, 100> path{};
  ASSERT_GT(::read(ends[0], path.data(), path.size() - 1), 0);
  ::close(ends[0]);
  // A concurrent test may have removed it already.
  const NamedFile probed(kPage);
  const NamedFile next(kPage);
  EXPECT_NE(::access(path.data(), F_OK), 0) << path.data();
  EXPECT_EQ(::access(probed.path().c_str(), F_OK), 0) << probed.path();
  EXPECT_EQ(::access(next.path().c_str(), F_OK), 0) << next.path();
}

// Files that shm has not created are kept.
TEST(NamedFile, KeepsOtherFiles) {
  const std::string other = "/dev/shm/backplane-test-" + std::to_string(::getpid());
  const sdk::Descriptor made(::open(other.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const NamedFile file(kPage);
  EXPECT_EQ(::access(other.c_str(), F_OK), 0);
  ::unlink(other.c_str());
}

// Whether the kernel excludes the page at this address from core dumps.
bool is_left_out_of_dumps(const void* address) {
  const auto expected = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') is_here = begin <= expected && expected < end;
    if (is_here && line.starts_with("VmFlags:")) return line.find(" dd") != std::string::npos;
  }
  ADD_FAILURE() << "no flags of the page found";
  return false;
}

// Otherwise the kernel would allocate every hole of the file.
TEST(Mapping, IsExcludedFromCoreDumps) {
  constexpr size_t kSize = 8 * kPage;
  const sdk::Descriptor file = make_anonymous(kSize);
  Arena arena(file.get(), 0, kSize);
  EXPECT_TRUE(is_left_out_of_dumps(arena.data()));
  const uint64_t place = arena.allocate(kPage);
  EXPECT_FALSE(is_left_out_of_dumps(arena.data() + place));
  EXPECT_TRUE(is_left_out_of_dumps(arena.data() + (place + kPage) % kSize));
  arena.free(place, kPage);
  EXPECT_TRUE(is_left_out_of_dumps(arena.data() + place));
}

// Checks that need no other rank.
TEST(CheckSegment, ReportsWhyAGroupIsImpossible) {
  check_segment(2);
  try {
    check_segment(kMaxRanks + 1);
    ADD_FAILURE() << "accepted too many ranks";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_UNSUPPORTED);
    EXPECT_NE(std::string(why.what()).find("at most 1024 ranks, not 1025"), std::string::npos) << why.what();
  }
}

}  // namespace
}  // namespace backplane::shm::test
