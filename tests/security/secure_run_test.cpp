// SPDX-License-Identifier: Apache-2.0
//
// Jobs with a secret under `backplane run`: the environment of the ranks, refused backends, and no disclosure of the
// secret.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "support/free_port.hpp"
#include "tools/command.hpp"

namespace backplane::test {
namespace {

constexpr const char* kSecret = "s3cretWordOfThisTestThatNobodyPrints";

class SecureRun : public testing::Test {
 protected:
  SecureRun() {
    std::ofstream(file_) << kSecret << "\n";
    ::chmod(file_.c_str(), 0600);
  }

  // In a job with the secret in the file.
  static std::vector<std::string> job(const std::vector<std::string>& options,
                                      const std::vector<std::string>& program) {
    std::vector<std::string> words = {"run"};
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("--");
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }
  static void expect_no_secret(const Outcome& outcome) {
    EXPECT_FALSE(contains(outcome.out + outcome.err, kSecret)) << outcome.out << outcome.err;
  }

  const ScopedDirectory place_;
  const std::string file_ = place_.file("secret");
};

TEST_F(SecureRun, RanksMeetThroughTheSecureStore) {
  const Outcome outcome = run(job({"-n", "3", "--secret-file", file_}, {BACKPLANE_TEST_RANK}),
                              {.environment = {{"BACKPLANE_LOG", "debug"}}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "[0] word of 1"), 1U) << outcome.out;
  expect_no_secret(outcome);
}

TEST_F(SecureRun, TheLauncherCreatesASecret) {
  const Outcome outcome = run(job({"-n", "2", "--secure"}, {BACKPLANE_TEST_RANK}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "[1] word of 0"), 1U) << outcome.out;
}

// Each job has a random secret. Its descriptor is read-only and has no path.
TEST_F(SecureRun, TheCreatedSecretIsSealed) {
  const std::string show =
      "cat /proc/self/fd/$BACKPLANE_SECRET_FD; echo; stat -Lc %s /proc/self/fd/$BACKPLANE_SECRET_FD; "
      "echo x >/proc/self/fd/$BACKPLANE_SECRET_FD || echo sealed";
  const auto start = [&show] { return run(job({"-n", "1", "--no-prefix", "--secure"}, {"sh", "-c", show})); };
  const Outcome first = start();
  const Outcome second = start();
  EXPECT_EQ(count_lines(first.out, "64"), 1U) << first.out;
  EXPECT_EQ(count_lines(first.out, "sealed"), 1U) << first.out << first.err;
  EXPECT_NE(first.out.substr(0, 64), second.out.substr(0, 64));
}

TEST_F(SecureRun, NoValueInArgumentsOrEnvironment) {
  const std::string look =
      "tr '\\0' '\\n' </proc/$$/environ; tr '\\0' '\\n' </proc/$$/cmdline; "
      "tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' '\\n' </proc/$PPID/cmdline";
  const Outcome named = run(job({"-n", "1", "--no-prefix", "--secret-file", file_}, {"sh", "-c", look}));
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(count_lines(named.out, "BACKPLANE_SECRET_FILE=" + file_), 1U) << named.out;
  expect_no_secret(named);
  const Outcome drawn = run(job({"-n", "1", "--no-prefix", "--secure"},
                                {"sh", "-c", look + "; echo; cat /proc/self/fd/$BACKPLANE_SECRET_FD"}));
  const std::string secret = drawn.out.substr(drawn.out.rfind('\n') + 1);
  ASSERT_EQ(secret.size(), 64U) << drawn.out;
  EXPECT_EQ(drawn.out.find(secret), drawn.out.rfind(secret));
}

TEST_F(SecureRun, ARankWithoutTheSecretIsRefused) {
  const Outcome outcome = run(job({"-n", "1", "--no-prefix", "--secret-file", file_},
                                  {"env", "-u", "BACKPLANE_SECRET_FILE", BACKPLANE_TEST_RANK}));
  EXPECT_EQ(outcome.code, 8);
  EXPECT_TRUE(contains(outcome.err, "has a job secret, this rank has none")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "refused a client which has no secret")) << outcome.err;
  expect_no_secret(outcome);
}

TEST_F(SecureRun, AFileReadableByOthersIsRefused) {
  ::chmod(file_.c_str(), 0644);
  const Outcome outcome = run(job({"-n", "1", "--secret-file", file_}, {"true"}));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "is open to other users (mode 0644)")) << outcome.err;
  expect_no_secret(outcome);
}

TEST_F(SecureRun, WrongUseOfTheLauncher) {
  const Outcome both = run(job({"-n", "1", "--secure", "--secret-file", file_}, {"true"}));
  EXPECT_EQ(both.code, 2) << both.err;
  EXPECT_TRUE(contains(both.err, "--secret-file excludes --secure")) << both.err;
  const Outcome nodes = run(
      job({"-n", "1", "--secure", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "29999"}, {"true"}));
  EXPECT_EQ(nodes.code, 2) << nodes.err;
  EXPECT_TRUE(contains(nodes.err, "on this node alone")) << nodes.err;
}

// Several launchers; here all on the loopback interface.
TEST_F(SecureRun, NodesShareTheFile) {
  const std::string port = std::to_string(free_port());
  const auto node = [&port](int rank, const std::string& file) {
    return job({"-n", "1", "--no-prefix", "--nnodes", "2", "--node-rank", std::to_string(rank), "--master-addr",
                "127.0.0.1", "--master-port", port, "--secret-file", file},
               {BACKPLANE_TEST_RANK});
  };
  const std::string other = place_.file("other");
  std::ofstream(other) << "another secret of a job\n";
  ::chmod(other.c_str(), 0600);
  Command first(node(0, file_));
  // A rank with another secret is refused as soon as there is a store.
  const Outcome other_job = run(node(1, other));
  EXPECT_EQ(other_job.code, 8);
  EXPECT_TRUE(contains(other_job.err, "has another job secret than this rank (BACKPLANE_SECRET_FILE)"))
      << other_job.err;
  expect_no_secret(other_job);
  const Outcome second = run(node(1, file_));
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(count_lines(second.out, "word of 0"), 1U) << second.out;
  EXPECT_EQ(first.wait().code, 0);
}

#ifdef BACKPLANE_TEST_gloo
TEST_F(SecureRun, ABackendWithoutAuthenticationIsRefused) {
  const Outcome outcome = run(job({"-n", "2", "--secure", "--backend", "gloo"}, {BACKPLANE_TEST_HELLO}));
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(
      contains(outcome.err, "backend 'gloo' cannot authenticate its peers (auth=none), and the job has a secret"))
      << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "or start the job without --secure")) << outcome.err;
}
#endif

#ifdef BACKPLANE_TEST_shm
TEST_F(SecureRun, RanksOfOneHostShareProtectedMemory) {
  const Outcome outcome = run(job({"-n", "3", "--secure", "--backend", "shm"}, {BACKPLANE_TEST_HELLO}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "[1] rank 1 of 3 over shm: the ranks add up to 3"), 1U) << outcome.out;
}
#endif

#if defined(BACKPLANE_TEST_zmq) && defined(BACKPLANE_TEST_gloo)
TEST_F(SecureRun, AutoSkipsBackendsWithoutAuthentication) {
  const Outcome outcome = run(job({"-n", "3", "--secret-file", file_, "--backend", "auto"}, {BACKPLANE_TEST_HELLO}),
                              {.environment = {{"BACKPLANE_LOG", "debug"}, {"BACKPLANE_PLUGINS_DENY", "shm"}}});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "[1] rank 1 of 3 over zmq: the ranks add up to 3"), 1U) << outcome.out;
  expect_no_secret(outcome);
}
#endif

TEST_F(SecureRun, OneProcessNeedsNoProof) {
  const Outcome outcome = run(job({"-n", "1", "--no-prefix", "--secure", "--backend", "self"}, {BACKPLANE_TEST_HELLO}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_lines(outcome.out, "rank 0 of 1 over self: the ranks add up to 0"), 1U) << outcome.out;
}

TEST_F(SecureRun, ListAndInfoShowAuthentication) {
  const Outcome list = run({"list"});
  EXPECT_TRUE(contains(list.out, "AUTH")) << list.out;
  const Outcome self = run({"info", "self"});
  EXPECT_TRUE(contains(self.out, "Auth     process")) << self.out;
  EXPECT_TRUE(contains(run({"info", "--json", "inproc"}).out, "\"auth\": \"process\""));
#ifdef BACKPLANE_TEST_zmq
  EXPECT_TRUE(contains(run({"info", "zmq"}).out, "Auth     peers"));
  EXPECT_TRUE(contains(run({"list", "--json"}).out, "\"auth\": \"peers\""));
#endif
#ifdef BACKPLANE_TEST_gloo
  EXPECT_TRUE(contains(run({"info", "gloo"}).out, "Auth     none"));
#endif
#ifdef BACKPLANE_TEST_shm
  EXPECT_TRUE(contains(run({"info", "shm"}).out, "Auth     peers"));
#endif
}

}  // namespace
}  // namespace backplane::test
