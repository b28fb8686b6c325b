// SPDX-License-Identifier: Apache-2.0
#include "run/signals.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include "common/failure.hpp"

namespace backplane::tool {

Signals::Signals() {
  // A blocked signal is delivered to a signalfd even if it is ignored, so ignored signals are not added.
  const auto ignored = [](int number) {
    struct sigaction action {};
    return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  };
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2}) {
    if (!ignored(number)) ::sigaddset(&set, number);
  }
  sigpipe_was_default_ = !ignored(SIGPIPE);
  ::signal(SIGPIPE, SIG_IGN);
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  descriptor_ = base::Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) fail_system("cannot create a signalfd");
}

std::vector<int> Signals::take() {
  std::vector<int> numbers;
  signalfd_siginfo info{};
  while (::read(descriptor_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const auto number = static_cast<int>(info.ssi_signo);
    if (taken_end_ == 0 && (number == SIGINT || number == SIGTERM || number == SIGHUP)) taken_end_ = number;
    numbers.push_back(number);
  }
  return numbers;
}

bool Signals::asked_to_end() const {
  sigset_t pending;
  ::sigpending(&pending);
  return ::sigismember(&pending, SIGINT) == 1 || ::sigismember(&pending, SIGTERM) == 1 ||
         ::sigismember(&pending, SIGHUP) == 1;
}

}  // namespace backplane::tool
