// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace backplane::zmq {

// libzmq ends the process if it cannot have a thread or a descriptor that it needs itself. So they are tried out before
// libzmq is asked: throws Failure(BP_RESOURCE) if there are not enough for one group now. Starts short-lived threads.
void require_resources(int io_threads);

// libzmq allocates each large message that comes in, and glibc soon gives the memory back to the kernel, which clears
// every page anew for the next one. Lets glibc keep a few megabytes instead, unless the program has settled that itself
// (mallopt, GLIBC_TUNABLES): by the rule by which it keeps what a program has once freed.
void keep_memory_for_messages();

}  // namespace backplane::zmq
