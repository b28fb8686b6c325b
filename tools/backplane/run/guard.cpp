// SPDX-License-Identifier: Apache-2.0
#include "run/guard.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "common/failure.hpp"
#include "common/files.hpp"

namespace backplane::tool {
namespace {

// Reads groups until all write ends of the pipe are closed, which happens only when the launcher dies.
int keep_guard(int line) {
  ::prctl(PR_SET_PDEATHSIG, 0);  // the guard outlives the launcher
  ::prctl(PR_SET_NAME, "backplane-guard");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // A reader of the launcher's output must not wait for the guard to end, so it keeps no descriptor but the pipe.
  ::dup2(line, 0);
  ::close_range(1, ~0U, 0);
  std::vector<std::pair<pid_t, base::Descriptor>> groups;  // once the launcher is dead, their numbers may be reused
  pid_t group = 0;
  for (;;) {
    const ssize_t size = ::read(0, &group, sizeof group);
    if (size < 0 && errno == EINTR) continue;
    if (size != static_cast<ssize_t>(sizeof group)) break;
    groups.emplace_back(group, base::open_pidfd(group));
  }
  for (const auto& [each, process] : groups) base::signal_group(process.get(), each, SIGKILL);
  return 0;
}

}  // namespace

Guard::Guard() {
  base::Pipe pipe = make_pipe();
  base::Pipe ready = make_pipe();
  process_ = base::Subprocess::fork([&pipe] {
    pipe.write.reset();
    return keep_guard(pipe.read.get());
  });
  if (!process_) fail_system("cannot start the guard process");
  // Waits until the guard has closed its copy. Before that, it would end with the launcher.
  ready.write.reset();
  char nothing = 0;
  while (::read(ready.read.get(), &nothing, 1) < 0 && errno == EINTR) {
  }
  line_ = std::move(pipe.write);
}

}  // namespace backplane::tool
