// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace backplane::mpi {

// Restores the process's handlers of the signals for which MPI and the libraries below it install theirs: UCX those of
// crashes and SIGHUP when it is loaded, MPICH SIGUSR1.
// By system calls, because the C library's sigaction adds flags of its own.
class SignalHandlersKept {
 public:
  SignalHandlersKept() {
    for (size_t i = 0; i < kSignals.size(); ++i) known_[i] = call(kSignals[i], nullptr, &actions_[i]);
  }
  ~SignalHandlersKept() {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      if (known_[i]) call(kSignals[i], &actions_[i], nullptr);
    }
  }
  SignalHandlersKept(const SignalHandlersKept&) = delete;
  SignalHandlersKept& operator=(const SignalHandlersKept&) = delete;

 private:
  // The kernel's struct sigaction. Opaque here; 32 bytes or less.
  struct alignas(8) Action {
    std::array<std::byte, 64> bytes;
  };
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGHUP, SIGUSR1};
  static constexpr size_t kSetBytes = 8;  // of the kernel's sigset_t

  static bool call(int signal, const Action* action, Action* old) {
    return ::syscall(SYS_rt_sigaction, signal, action, old, kSetBytes) == 0;
  }

  std::array<Action, kSignals.size()> actions_ = {};
  std::array<bool, kSignals.size()> known_ = {};
};

}  // namespace backplane::mpi
