// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/event_fd.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>

#include "backplane/base/pipe.hpp"

namespace backplane::base {
namespace {

bool is_readable(int fd) {
  pollfd polled = {fd, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

TEST(EventFdTest, IsReadableWhileItIsRaised) {
  const EventFd event;
  EXPECT_FALSE(is_readable(event.get()));
  event.raise();
  event.raise();
  EXPECT_TRUE(is_readable(event.get()));
  event.clear();
  EXPECT_FALSE(is_readable(event.get()));
  event.clear();  // does not block
}

TEST(PipeTest, EndsWithItsWriters) {
  Pipe pipe = Pipe::open();
  ASSERT_TRUE(pipe);
  EXPECT_EQ(::fcntl(pipe.read.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(::write(pipe.write.get(), "x", 1), 1);
  errno = ENOENT;
  pipe.write.reset();
  EXPECT_EQ(errno, ENOENT);
  char byte = 0;
  EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 1);
  EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 0);
}

}  // namespace
}  // namespace backplane::base
