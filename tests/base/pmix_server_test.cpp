// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/pmix_server.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "support/environment.hpp"

namespace backplane::base {
namespace {

const PmixServer::Job kJob = {"name", {"host"}, 0, 2};

// A script instead of the server.
class PmixServerTest : public testing::Test {
 protected:
  std::string server(const std::string& script) const {
    const std::string path = place_.file("server");
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms(0755));
    return path;
  }
  std::string failure(const std::string& path) const {
    try {
      PmixServer(path, kJob);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "none";
  }

  const test::ScopedDirectory place_;
};

TEST(PmixLink, CarriesMessagesOfAnySizeAndContent) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  PmixLink near{Descriptor(ends[0])};
  PmixLink far{Descriptor(ends[1])};
  const std::string bytes = std::string(10'000, '\n') + std::string(10'000, '\0');
  near.send({"first", bytes});
  near.send({"second", ""});
  EXPECT_FALSE(far.has_message());
  EXPECT_EQ(far.receive().text, bytes);
  EXPECT_TRUE(far.has_message());
  EXPECT_EQ(far.receive().kind, "second");
  near.close();
  EXPECT_THROW(far.receive(), PmixLink::Closed);
  EXPECT_THROW(far.send({"third", ""}), PmixLink::Closed);
}

// Standard input of the script is the socket: the launcher's messages arrive there, and the replies go there.
TEST_F(PmixServerTest, GivesEachRankItsVariables) {
  const std::string directory = place_.file("temporary");
  std::filesystem::create_directory(directory);
  const std::string path = server(
      "printf 'directory %d\\n%svariable 3\\nA=1rank 1\\n0variable 5\\nB=x=yrank 1\\n1ready 0\\n' ${#DIRECTORY} "
      "$DIRECTORY >&0\n"
      "exec cat >" +
      place_.file("heard"));
  ::setenv("DIRECTORY", directory.c_str(), 1);
  {
    PmixServer made(path, kJob);
    EXPECT_EQ(made.variables(0), (PmixServer::Variables{{"A", "1"}}));
    EXPECT_EQ(made.variables(1), (PmixServer::Variables{{"B", "x=y"}}));
    made.rank_ended(1);
  }
  ::unsetenv("DIRECTORY");
  std::string heard;
  std::getline(std::ifstream(place_.file("heard")), heard, '\0');
  EXPECT_EQ(heard, "name 4\nnamehost 4\nhostnode 1\n0ranks 1\n2start 0\nended 1\n1");
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST_F(PmixServerTest, ReportsWhyItDoesNotServe) {
  EXPECT_EQ(failure("/nowhere/server"), "cannot start /nowhere/server: No such file or directory");
  EXPECT_EQ(failure(server("exit 1")),
            place_.file("server") + " has ended before it served; check its libraries with ldd");
  EXPECT_EQ(failure(server("printf 'error 7\\nno room' >&0; exec cat >/dev/null")), "no room");
  EXPECT_EQ(failure(server("printf 'ready 0\\n' >&0; exec cat >/dev/null")),
            place_.file("server") + " is not of this version; install all of Backplane anew");
}

}  // namespace
}  // namespace backplane::base
