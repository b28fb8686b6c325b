// SPDX-License-Identifier: Apache-2.0
//
// A double of NCCL and of the CUDA runtime, for machines without a GPU: the same functions over host memory. Devices
// are numbers; a stream is a thread that does one thing after the other; an event is a point in it; a communicator is a
// piece of memory that its ranks share, whichever process they are in.
//
// The environment says what it shall play:
//   BACKPLANE_DOUBLE_DEVICES=N         how many devices there are (8)
//   BACKPLANE_DOUBLE_CC=N              their compute capability (90)
//   BACKPLANE_DOUBLE_PEERS=N           so many of them, from the first on, reach each other's memory (all)
//   BACKPLANE_DOUBLE_DRIVER=N          the driver's version (13000); 0: there is none
//   BACKPLANE_DOUBLE_FAIL=RESULT@N     each communicator reports this ncclResult_t once it was given N operations
//   BACKPLANE_DOUBLE_STALL=N           each communicator's operation N (from 1) hangs until it is aborted
//   BACKPLANE_DOUBLE_QUEUE=N           a stream holds so much; who adds more waits (NCCL does so behind its callers)
//   BACKPLANE_DOUBLE_SLOW=N            an operation takes effect once its communicator was asked N times (1)
//   BACKPLANE_DOUBLE_LATE=N            an operation enters its stream when its communicator is asked, N us later or
//                                      more
//   BACKPLANE_DOUBLE_CONNECTS=0        communicators do not come to be connected
//   BACKPLANE_DOUBLE_VERSION=N         the version of NCCL (that of nccl.h)
//
// double_launches(device) tells how many operations or groups of them were launched on that device by this process,
// double_message_launches() how many groups of sends and receives there were on all of them. double_fail(device, n) has
// the n-th call from now on fail of those that a thread makes on that device and that can; double_calls() tells how
// many there were since.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" uint64_t double_launches(int device);
extern "C" uint64_t double_message_launches();
extern "C" void double_fail(int device, uint64_t number);
extern "C" uint64_t double_calls();

namespace backplane::nccl_double {

inline int64_t setting(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

// Ends the process: who calls like that would get undefined behaviour, or hang, from the real library.
[[noreturn]] inline void violated(const char* rule) {
  std::fprintf(stderr, "double of NCCL: %s\n", rule);
  std::abort();
}

}  // namespace backplane::nccl_double
