// SPDX-License-Identifier: Apache-2.0
//
// Descriptors and child processes. Every descriptor made here is close-on-exec and above those that a child gets.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "backplane/base/descriptor.hpp"

namespace backplane::tool {

// The lowest own descriptor, above those of a child: dup2 to 0..3 in a child never overwrites one.
constexpr int kLowestDescriptor = 10;

using base::Descriptor;

struct Pipe {
  Descriptor read;
  Descriptor write;
};
Pipe make_pipe();

Descriptor open_null_device();

void set_nonblocking(int fd);

// A program started without 0, 1 or 2 would otherwise get a pipe or socket of ours under that number.
void open_standard_descriptors();

struct Child {
  std::string path;  // resolved; PATH is not searched
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  int input = 0;  // becomes 0, 1, 2 in the child
  int output = 1;
  int error = 2;
  int extra = -1;                // becomes kExtraDescriptor, if any
  int inherited = -1;            // stays open in the child under its number, if any
  int announce = -1;             // where the child writes its number (a pid_t) before it executes anything, if any
  sigset_t signal_mask{};        // blocked in the child
  bool default_sigpipe = false;  // restores SIGPIPE, which this process ignores
};
constexpr int kExtraDescriptor = 3;

struct Started {
  pid_t pid = -1;      // the caller must reap it
  int exec_errno = 0;  // why the program could not be executed; then the child has ended
};

// Starts a child in its own process group. The kernel kills it when the thread that forked ends: call it from the main
// thread. Other threads may exist.
Started start(const Child& child);

// Kills the group of a child that was not yet waited for, and waits for the child. Returns its wait status.
int kill_and_reap(pid_t pid);

// Waits for a child that was killed or has ended. Returns its wait status.
int reap(pid_t pid);

}  // namespace backplane::tool
