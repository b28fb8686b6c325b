// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "handle.hpp"

namespace backplane::core {
namespace {

struct Bound : Handle<Bound> {};
struct Data : Handle<Data, AfterFork::kUsable> {};

// The code with which a child ends that runs `body`.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProcessMarkTest, AChildDiffersFromItsParent) {
  const ProcessMark own = ProcessMark::current();
  EXPECT_EQ(own.pid(), ::getpid());
  EXPECT_EQ(in_child([own] { return own == ProcessMark::current() ? 1 : 0; }), 0);
  EXPECT_EQ(in_child([] { return ProcessMark::current().pid() == ::getpid() ? 0 : 1; }), 0);
  EXPECT_EQ(own, ProcessMark::current());
}

TEST(ProcessMarkTest, AChildRefusesHandlesButThoseOfData) {
  auto* const bound = new_handle<Bound>();
  auto* const data = new_handle<Data>();
  const int code = in_child([bound, data] {
    release(bound);  // no effect
    try {
      live(bound, "bound");
      return 1;
    } catch (const Error& e) {
      const std::string expected = "`bound` was made in process " + std::to_string(::getppid());
      if (e.status() != BP_INVALID || std::string(e.what()).find(expected) != 0) return 2;
    }
    if (!is_live(data)) return 3;
    auto* const own = new_handle<Bound>();
    return is_live(own) ? 0 : 4;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(is_live(bound));
  release(bound);
  release(data);
  EXPECT_FALSE(is_live(bound));
}

// A lock that is held during the fork is free in the child.
TEST(ProcessMarkTest, EachProcessHasItsOwnVariable) {
  static constinit PerProcess<std::mutex> mutex;
  const std::lock_guard lock(*mutex);
  EXPECT_EQ(in_child([] {
              const std::lock_guard own(*mutex);
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace backplane::core
