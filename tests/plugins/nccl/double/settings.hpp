// SPDX-License-Identifier: Apache-2.0
//
// A test double of NCCL and of the CUDA runtime, for machines without a GPU: the same functions over host memory. A
// device is a number; a stream is a thread that runs tasks in order; an event is a point in it; a communicator is
// memory shared by its ranks, in any processes.
//
// Environment variables, with defaults:
//   BACKPLANE_DOUBLE_DEVICES=N         number of devices (8)
//   BACKPLANE_DOUBLE_CC=N              their compute capability (90)
//   BACKPLANE_DOUBLE_PEERS=N           the first N devices have peer access to each other (all)
//   BACKPLANE_DOUBLE_DRIVER=N          version of the driver (13000); 0: there is none
//   BACKPLANE_DOUBLE_FAIL=RESULT@N     each communicator reports this ncclResult_t after N operations
//   BACKPLANE_DOUBLE_STALL=N           operation N (from 1) of each communicator hangs until it is aborted
//   BACKPLANE_DOUBLE_QUEUE=N           capacity of a stream; a full one blocks its callers, and NCCL's launching thread
//   BACKPLANE_DOUBLE_SLOW=N            an operation takes effect after N queries of its communicator's state (1)
//   BACKPLANE_DOUBLE_LATE=N            an operation enters its stream at the first query at least N us later
//   BACKPLANE_DOUBLE_CONNECTS=0        communicators never finish connecting
//   BACKPLANE_DOUBLE_VERSION=N         the version of NCCL (that of nccl.h)
//
// double_launches(device): operations, or groups of them, that this process has launched on the device.
// double_message_launches(): groups of sends and receives on all devices.
// double_fail(device, n): the n-th call from now on, of those on that device that can fail, fails.
// double_calls(): the number of these calls since.
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

// Ends the process. The same call would have undefined behaviour, or hang, in the real library.
[[noreturn]] inline void violated(const char* rule) {
  std::fprintf(stderr, "double of NCCL: %s\n", rule);
  std::abort();
}

}  // namespace backplane::nccl_double
