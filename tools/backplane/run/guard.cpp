// SPDX-License-Identifier: Apache-2.0
#include "run/guard.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "common/failure.hpp"

namespace backplane::tool {
namespace {

// Reads groups until all write ends of the pipe are closed, which happens only when the launcher dies.
[[noreturn]] void keep_guard(int line) {
  ::setsid();  // shields the guard from signals to the terminal's or launcher's process group
  ::prctl(PR_SET_NAME, "backplane-guard");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // A reader of the launcher's output must not wait for the guard to end, so it keeps no descriptor but the pipe.
  ::dup2(line, 0);
  ::close_range(1, ~0U, 0);
  std::vector<pid_t> groups;
  pid_t group = 0;
  for (;;) {
    const ssize_t size = ::read(0, &group, sizeof group);
    if (size < 0 && errno == EINTR) continue;
    if (size != static_cast<ssize_t>(sizeof group)) break;
    groups.push_back(group);
  }
  for (const pid_t each : groups) ::kill(-each, SIGKILL);
  ::_exit(0);
}

}  // namespace

Guard::Guard() {
  Pipe pipe = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) fail_system("cannot start the guard process");
  if (pid_ == 0) {
    pipe.write.reset();
    keep_guard(pipe.read.get());
  }
  line_ = std::move(pipe.write);
}

Guard::~Guard() { dismiss(); }

void Guard::dismiss() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  reap(pid_);
  pid_ = -1;
}

}  // namespace backplane::tool
