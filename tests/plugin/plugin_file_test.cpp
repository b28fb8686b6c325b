// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin_file.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "plugin/support.hpp"

namespace backplane::core::plugin {
namespace {

const std::string kMove = "; only plugins may be named backplane_*.so here: move or rename it";

std::string file_reason(const std::string& path) {
  return test::error_of([&path] { read_plugin_file(path, false); }).what();
}

TEST(PluginFile, ReadsAPluginAndRemembersWhichFileItWas) {
  const test::TempDirectory temp;
  const auto path = temp.copy("good", "backplane_good.so");
  const Note note = read_plugin_file(path, false);
  EXPECT_EQ(note.backends.at(0).id, "good");
  EXPECT_EQ(identify(path), note.file);
  EXPECT_NE(identify(temp.copy("good", "backplane_b.so")), note.file);
  EXPECT_EQ(identify(temp.file("missing")), std::nullopt);
}

TEST(PluginFile, OpensOnlyRegularFiles) {
  const test::TempDirectory temp;
  ASSERT_EQ(::mkfifo(temp.file("fifo").c_str(), 0600), 0);
  EXPECT_EQ(file_reason(temp.file("fifo")), "it is a FIFO, not a regular file" + kMove);
  EXPECT_EQ(file_reason(temp.directory("directory")), "it is a directory" + kMove);
  EXPECT_EQ(file_reason("/dev/null"), "it is a device, not a regular file" + kMove);
  EXPECT_EQ(file_reason(temp.file("missing")), "it cannot be examined: No such file or directory");
  EXPECT_EQ(file_reason(temp.write("empty", {})), "it is empty; copy it here again, or rebuild it");

  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, temp.file("socket").c_str(), sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(file_reason(temp.file("socket")), "it is a socket, not a regular file" + kMove);
  ::close(fd);
}

TEST(PluginFile, RefusesFilesWritableByOthers) {
  const test::TempDirectory temp;
  const auto path = temp.copy("good", "plugin");
  ::chmod(path.c_str(), 0664);
  EXPECT_TRUE(test::contains(file_reason(path), "it is writable by its group (mode 0664)"));
  ::chmod(path.c_str(), 0646);
  EXPECT_TRUE(test::contains(file_reason(path), "it is writable by others (mode 0646)"));
  EXPECT_TRUE(test::contains(file_reason(path), "BACKPLANE_ALLOW_UNSAFE_PLUGINS=1"));
  EXPECT_EQ(read_plugin_file(path, true).backends.size(), 1U);
  ::chmod(path.c_str(), 0644);
  ::chmod(temp.path().c_str(), 01777);
  EXPECT_TRUE(test::contains(file_reason(path), "its directory " + temp.path().string() + " is writable by others"));
  ::chmod(temp.path().c_str(), 0755);
  EXPECT_EQ(read_plugin_file(path, false).backends.size(), 1U);
}

TEST(PluginFile, RefusesPathsThatOthersCanExchange) {
  const test::TempDirectory temp;
  temp.directory("upper/inner");
  const std::string upper = temp.file("upper");
  const auto path = temp.copy("good", "upper/inner/plugin");
  ::chmod(upper.c_str(), 0777);
  const std::string above = "the directory " + upper + " above it ";
  EXPECT_TRUE(test::contains(file_reason(path), above + "is writable by others (mode 0777)"));
  ::chmod(upper.c_str(), 0775);
  EXPECT_TRUE(test::contains(file_reason(path), above + "is writable by its group (mode 0775)"));
  EXPECT_EQ(read_plugin_file(path, true).backends.size(), 1U);
  ::chmod(upper.c_str(), 01777);  // like /tmp: others can add entries and not exchange those of this user
  EXPECT_EQ(read_plugin_file(path, false).backends.size(), 1U);
}

// The owner of a directory can exchange all that is in it, whatever the owner and the mode of that.
TEST(PluginFile, RefusesPathsOfOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const test::TempDirectory temp;
  temp.directory("theirs/inner");
  const auto path = temp.copy("good", "theirs/inner/plugin");
  ASSERT_EQ(::chown(temp.file("theirs").c_str(), 12345, 12345), 0);
  const std::string above = "the directory " + temp.file("theirs") + " above it belongs to user 12345";
  EXPECT_TRUE(test::contains(file_reason(path), above));
  temp.directory("own");
  const std::string by_file = temp.file("own/file");
  const std::string by_directory = temp.file("own/directory");
  std::filesystem::create_symlink("../theirs/inner/plugin", by_file);
  std::filesystem::create_directory_symlink(temp.file("theirs/inner"), by_directory);
  EXPECT_TRUE(test::contains(file_reason(by_file), above));
  EXPECT_TRUE(test::contains(file_reason(by_directory + "/plugin"), above));

  const std::string link = temp.file("link");
  std::filesystem::create_symlink("own", link);
  temp.copy("good", "own/plugin");
  EXPECT_EQ(read_plugin_file(link + "/plugin", false).backends.size(), 1U);
  ASSERT_EQ(::lchown(link.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(test::contains(file_reason(link + "/plugin"), "the link " + link + " to it belongs to user 12345"));
}

TEST(PluginFile, RefusesFilesOfOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const test::TempDirectory temp;
  const auto path = temp.copy("good", "plugin");
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(test::contains(file_reason(path), "it belongs to user 12345"));
  ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(temp.path().c_str(), 12345, 12345), 0);
  EXPECT_TRUE(test::contains(file_reason(path), "its directory " + temp.path().string() + " belongs to user 12345"));
}

TEST(PluginFile, FollowsLinks) {
  const test::TempDirectory temp;
  temp.directory("open");
  temp.directory("own");
  temp.copy("good", "open/plugin");
  std::filesystem::create_symlink("../open/plugin", temp.file("own/link"));
  EXPECT_EQ(read_plugin_file(temp.file("own/link"), false).backends.size(), 1U);
  ::chmod(temp.file("open").c_str(), 0777);
  EXPECT_TRUE(test::contains(file_reason(temp.file("own/link")), temp.file("open") + " is writable by others"));
  std::filesystem::create_symlink("loop", temp.file("loop"));
  EXPECT_TRUE(test::contains(file_reason(temp.file("loop")), "Too many levels of symbolic links"));
}

uint64_t bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  counters >> name >> bytes;  // "rchar: 4711"
  return bytes;
}

TEST(PluginFile, ReadsLittleOfALargeFile) {
  const test::TempDirectory temp;
  const auto path = temp.copy("good", "plugin");
  std::filesystem::resize_file(path, uint64_t{15} << 30);  // sparse
  const uint64_t before = bytes_read();
  EXPECT_EQ(read_plugin_file(path, false).backends.size(), 1U);
  EXPECT_LT(bytes_read() - before, 100'000U);
}

}  // namespace
}  // namespace backplane::core::plugin
