// SPDX-License-Identifier: Apache-2.0
//
// The sources of the job's secret, and the error of each invalid one.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "environment.hpp"
#include "registry/selection.hpp"
#include "security/secret.hpp"
#include "store/store_fixture.hpp"

namespace backplane::core {
namespace {

constexpr const char* kWord = "the secret of this test, 42";

std::string lines(std::string text, size_t count) { return text.append(count, '\n'); }

class SecretTest : public testing::Test {
 protected:
  SecretTest() {
    environment_.set("BACKPLANE_SECRET_FILE", std::nullopt);
    environment_.set("BACKPLANE_SECRET_FD", std::nullopt);
  }

  std::string file(const std::string& content, mode_t mode = 0600) {
    const std::string path = directory_.file("secret");
    ::unlink(path.c_str());
    std::ofstream(path, std::ios::binary) << content;
    ::chmod(path.c_str(), mode);
    environment_.set("BACKPLANE_SECRET_FILE", path);
    return path;
  }

  // Errors must not contain the secret.
  void expect_refused(const std::string& part) {
    const Error error = error_of([] { environment_secret(); });
    const std::string text = error.what();
    EXPECT_EQ(error.status(), BP_INVALID) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(text.find("secret of this test"), std::string::npos) << text;
  }

  static bool same(const Secret& a, const Secret& b) {
    return std::memcmp(a.key().data(), b.key().data(), kKeySize) == 0;
  }

  ScopedDirectory directory_;
  Environment environment_;
};

TEST_F(SecretTest, IsAbsentByDefault) {
  EXPECT_EQ(environment_secret(), nullptr);
  EXPECT_EQ(secret_variable(), "");
  environment_.set("BACKPLANE_SECRET_FILE", "");
  EXPECT_EQ(environment_secret(), nullptr);
}

TEST_F(SecretTest, IgnoresOneNewlineAtTheEnd) {
  file(kWord);
  const auto bare = environment_secret();
  ASSERT_TRUE(bare);
  EXPECT_EQ(secret_variable(), "BACKPLANE_SECRET_FILE");
  file(lines(kWord, 1), 0400);
  EXPECT_TRUE(same(*bare, *environment_secret()));
  file(lines(kWord, 2));
  EXPECT_FALSE(same(*bare, *environment_secret()));
}

TEST_F(SecretTest, SizesFrom16To1024) {
  file(lines(std::string(15, 'x'), 1));
  expect_refused("has 15 bytes; use 16 to 1024");
  file("");
  expect_refused("has 0 bytes");
  file(std::string(16, 'x'));
  EXPECT_TRUE(environment_secret());
  file(lines(std::string(1024, 'x'), 1));
  EXPECT_TRUE(environment_secret());
  file(std::string(1025, 'x'));
  expect_refused("has more than 1024 bytes");
  file(std::string(5000, 'x'));
  expect_refused("has more than 1024 bytes");
}

TEST_F(SecretTest, RefusesFilesOpenToOthers) {
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    file(kWord, mode);
    expect_refused("is open to other users");
  }
}

TEST_F(SecretTest, AnotherUsersFileIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(::chown(file(kWord).c_str(), 1, 1), 0);
  expect_refused("belongs to user 1, this process to user 0");
}

TEST_F(SecretTest, RefusesOtherThanRegularFiles) {
  environment_.set("BACKPLANE_SECRET_FILE", directory_.path().string());
  expect_refused("is not a regular file");
  const std::string fifo = directory_.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  environment_.set("BACKPLANE_SECRET_FILE", fifo);
  expect_refused("is not a regular file");
  environment_.set("BACKPLANE_SECRET_FILE", directory_.file("missing"));
  expect_refused("cannot open the job's secret");
}

TEST_F(SecretTest, ADescriptorMayBeReadByMany) {
  const int fd = ::memfd_create("secret", MFD_CLOEXEC);
  ASSERT_EQ(::write(fd, kWord, std::strlen(kWord)), static_cast<ssize_t>(std::strlen(kWord)));
  environment_.set("BACKPLANE_SECRET_FD", std::to_string(fd));
  const auto first = environment_secret();
  const auto second = environment_secret();
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(same(*first, *second));
  EXPECT_EQ(secret_variable(), "BACKPLANE_SECRET_FD");
  EXPECT_EQ(::lseek(fd, 0, SEEK_CUR), static_cast<off_t>(std::strlen(kWord)));
  file(kWord);
  expect_refused("are both set; unset one");
  ::close(fd);
}

TEST_F(SecretTest, RefusesUnusableDescriptors) {
  environment_.set("BACKPLANE_SECRET_FD", "many");
  expect_refused("give a whole number");
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  environment_.set("BACKPLANE_SECRET_FD", std::to_string(ends[0]));
  expect_refused("which is not a regular file");
  ::close(ends[0]);
  ::close(ends[1]);
  expect_refused("which is not open");
}

TEST_F(SecretTest, AFileStoreMustBePrivate) {
  file(kWord);
  const std::string path = directory_.file("store");
  make_file_store(path)->set("k", "v", soon());
  ::chmod(path.c_str(), 0644);
  EXPECT_ERROR(BP_INVALID, "is open to other users", make_file_store(path)->get("k", soon()));
  environment_.set("BACKPLANE_SECRET_FILE", std::nullopt);
  EXPECT_EQ(make_file_store(path)->get("k", soon()), "v");
}

TEST(SecureEnvironment, NamesNeitherFilesNorCode) {
  Environment environment;
  environment.set("BACKPLANE_TRACE_DIR", "/evil");
  EXPECT_EQ(trusted_variable("BACKPLANE_TRACE_DIR", false), "/evil");
  EXPECT_EQ(trusted_variable("BACKPLANE_TRACE_DIR", true), std::nullopt);
  environment.set("BACKPLANE_BACKEND", "nccl?library=/evil.so");
  EXPECT_EQ(requested_or(nullptr, "BACKPLANE_BACKEND", false), "nccl?library=/evil.so");
  EXPECT_ERROR(BP_INVALID, "BACKPLANE_BACKEND has options", requested_or(nullptr, "BACKPLANE_BACKEND", true));
  EXPECT_EQ(requested_or("nccl?library=mine.so", "BACKPLANE_BACKEND", true), "nccl?library=mine.so");
}

}  // namespace
}  // namespace backplane::core
