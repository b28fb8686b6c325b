// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <future>
#include <sstream>
#include <thread>
#include <vector>

#include "store_fixture.hpp"

namespace backplane::core {
namespace {

class FileStoreTest : public testing::Test {
 protected:
  std::string contents() const {
    std::ifstream in(path_, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  void replace(const std::string& bytes) const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }

  ScopedDirectory directory_;
  const std::string path_ = directory_.file("store");
};

// Runs the body in a child process with one thread. True if it throws nothing.
bool run_in_child(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(FileStoreTest, TwoProcessesMeet) {
  const auto store = make_file_store(path_);
  store->set("parent", "1", soon());
  EXPECT_TRUE(run_in_child([this] {
    const auto own = make_file_store(path_);
    if (own->get("parent", soon()) != "1") throw Error(BP_INTERNAL, "wrong value");
    for (int i = 0; i < 50; ++i) own->add("n", 1, soon());
    own->set("child", "2", soon());
  }));
  EXPECT_EQ(store->get("child", soon()), "2");
  EXPECT_EQ(store->add("n", 1, soon()), 51);
  EXPECT_EQ(store->describe(), "file://" + path_);
}

TEST_F(FileStoreTest, OnlyTheUserMayReadIt) {
  make_file_store(path_)->set("k", "v", soon());
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(FileStoreTest, ErrorsNameThePath) {
  EXPECT_ERROR(BP_RESOURCE, "cannot open the store /no/such/dir/store: No such file",
               make_file_store("/no/such/dir/store"));
  EXPECT_ERROR(BP_RESOURCE, directory_.path().string(), make_file_store(directory_.path().string()));
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_ERROR(BP_INVALID, "is not a regular file", make_file_store(path_));
}

TEST_F(FileStoreTest, AnotherFileIsNotOverwritten) {
  replace("my thesis, chapter 1");
  EXPECT_ERROR(BP_INVALID, "is not a store", make_file_store(path_)->set("k", "v", soon()));
  EXPECT_EQ(contents(), "my thesis, chapter 1");
}

// A process that dies during an append leaves a part of its record.
TEST_F(FileStoreTest, AnIncompleteRecordIsTruncated) {
  make_file_store(path_)->set("a", "1", soon());
  const std::string before = contents();
  make_file_store(path_)->set("b", "2", soon());
  const std::string after = contents();
  for (size_t size = 0; size < after.size(); ++size) {
    replace(after.substr(0, size));
    const auto store = make_file_store(path_);
    EXPECT_EQ(store->check({"a"}, soon()), size >= before.size()) << size;
    EXPECT_FALSE(store->check({"b"}, soon())) << size;
    store->set("c", "3", soon());
    EXPECT_EQ(make_file_store(path_)->get("c", soon()), "3") << size;
  }
}

TEST_F(FileStoreTest, AnIncompleteRecordIsTruncatedWhileOthersRead) {
  const auto reader = make_file_store(path_);
  reader->set("a", "1", soon());
  { std::ofstream(path_, std::ios::binary | std::ios::app) << std::string("\x20\0\0\0half a record", 17); }
  EXPECT_FALSE(reader->check({"b"}, soon()));
  make_file_store(path_)->set("b", "2", soon());
  EXPECT_EQ(reader->get("b", soon()), "2");
}

TEST_F(FileStoreTest, ABadChecksumAtTheEndIsTruncated) {
  make_file_store(path_)->set("a", "1", soon());
  std::string bytes = contents();
  bytes.back() ^= 1;
  replace(bytes);
  EXPECT_FALSE(make_file_store(path_)->check({"a"}, soon()));
}

TEST_F(FileStoreTest, DamageInTheMiddleIsAnError) {
  const auto store = make_file_store(path_);
  store->set("a", "1", soon());
  std::string bytes = contents();
  bytes.back() ^= 1;
  store->set("b", "2", soon());
  std::string all = contents();
  all[bytes.size() - 1] = bytes.back();
  replace(all);
  EXPECT_ERROR(BP_RESOURCE, "was damaged", make_file_store(path_)->check({"a"}, soon()));
}

// Handles that have read nothing, a part, or everything find the same values after the log was compacted.
TEST_F(FileStoreTest, RemovedKeysLeaveTheDisk) {
  const auto writer = make_file_store(path_);
  const auto reader = make_file_store(path_);
  writer->set("kept", std::string(1000, 'k'), soon());
  for (int round = 0; round < 100; ++round) {
    if (round % 50 == 1) {
      EXPECT_FALSE(reader->check({"group/1"}, soon()));
    }
    for (int key = 0; key < 10; ++key) writer->set("group/" + std::to_string(key), std::string(1000, 'v'), soon());
    writer->set("round", std::to_string(round), soon());
    writer->remove_prefix("group/", soon());
  }
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_GT(info.st_size, 1'000'000);
  EXPECT_LT(info.st_blocks * 512, 200'000);
  for (const auto& store : {writer, reader, make_file_store(path_)}) {
    EXPECT_EQ(store->num_keys(soon()), 2);
    EXPECT_EQ(store->get("round", soon()), "99");
    EXPECT_EQ(store->get("kept", soon()), std::string(1000, 'k'));
  }
  reader->set("later", "1", soon());
  EXPECT_EQ(writer->get("later", soon()), "1");
}

// The pauses of each waiter grow, and reads by others do not reset them.
TEST_F(FileStoreTest, WaitingThreadsDoNotWakeEachOther) {
  const auto store = make_file_store(path_);
  store->set("there", "1", Deadline::never());
  std::vector<std::future<int64_t>> waits;
  for (int i = 0; i < 4; ++i) {
    waits.push_back(std::async(std::launch::async, [&store] {
      rusage before = {};
      rusage after = {};
      ::getrusage(RUSAGE_THREAD, &before);
      EXPECT_ERROR(BP_TIMEOUT, "never there", store->get("never there", Deadline::after(INT64_C(500'000'000))));
      ::getrusage(RUSAGE_THREAD, &after);
      return after.ru_nvcsw - before.ru_nvcsw;
    }));
  }
  for (auto& wait : waits) {
    const int64_t slept = wait.get();  // times
    EXPECT_GT(slept, 0) << "it waits awake";
    EXPECT_LT(slept, 200);
  }
}

TEST_F(FileStoreTest, AProcessKilledWithTheLockReleasesIt) {
  const auto store = make_file_store(path_);
  store->set("a", "1", soon());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    const bool held = fd >= 0 && ::flock(fd, LOCK_EX) == 0;
    if (!held || ::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1) << "the other process does not hold the lock";
  EXPECT_ERROR(BP_TIMEOUT, "another process holds the lock", store->set("b", "2", in_ms(50)));
  auto interrupted = std::async(std::launch::async, [&store] {
    const auto view = store->view();
    auto call = std::async(std::launch::async, [&view] { return error_of([&view] { view->add("n", 1, soon()); }); });
    view->interrupt(BP_CANCELLED, "enough");
    return call.get();
  });
  const Error told = interrupted.get();
  EXPECT_EQ(told.status(), BP_CANCELLED);
  EXPECT_STREQ(told.what(), "enough");
  auto blocked = std::async(std::launch::async, [&store] { store->set("b", "2", soon()); });
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  blocked.get();
  EXPECT_EQ(store->get("b", soon()), "2");
  ::close(ready[0]);
}

}  // namespace
}  // namespace backplane::core
