// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <string>

#include "backplane/sdk/failure.hpp"
#include "meeting.hpp"

namespace backplane::shm::test {
namespace {

// Nobody else can open it or guess where it is.
TEST(NamedFile, IsItsUsersAloneAndGoesWithTheObject) {
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
  EXPECT_EQ(paths.size(), 2U) << "a name came twice";
  for (const std::string& path : paths) EXPECT_NE(::access(path.c_str(), F_OK), 0) << path;
}

// What a process can tell before the ranks meet.
TEST(TrySegment, SaysWhyRanksCouldNotMeet) {
  try_segment(2);
  try {
    try_segment(kMostRanks + 1);
    ADD_FAILURE() << "so many cannot meet";
  } catch (const sdk::Failure& why) {
    EXPECT_EQ(why.status(), BP_UNSUPPORTED);
    EXPECT_NE(std::string(why.what()).find("at most 1024 ranks of one host, not 1025"), std::string::npos)
        << why.what();
  }
}

}  // namespace
}  // namespace backplane::shm::test
