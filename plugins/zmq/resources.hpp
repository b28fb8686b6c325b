// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace backplane::zmq {

// Throws Failure(BP_RESOURCE) if there are too few descriptors or threads for one group now: libzmq ends the process if
// it cannot create one that it needs. Starts short-lived threads.
void require_resources(int io_threads);

// Makes glibc keep a few megabytes of freed memory, unless the program has configured that (mallopt, GLIBC_TUNABLES).
// libzmq allocates each large message that arrives. By default glibc soon returns freed memory to the kernel, which
// clears every page again for the next message.
void keep_memory_for_messages();

}  // namespace backplane::zmq
