// SPDX-License-Identifier: Apache-2.0
//
// Commands to the stub, separated by ';', from BACKPLANE_STUB and, later, from backplane_stub_command():
//   level=N          the thread level that MPI_Init_thread provides; default: that of MPI_THREAD_MULTIPLE
//   tag_ub=N         MPI_TAG_UB; default 2^30
//   steps=N          the next N calls of MPI_Test each take kStep and complete nothing
//   version=TEXT     of MPI_Get_library_version
//   fail=FUNCTION    the function fails with a text that names it
//   hold=FUNCTION    its requests, also those in progress, do not complete. They use their memory at each MPI call
//   hang=FUNCTION    the function does not return
//   late=FUNCTION    its requests complete only once MPI_Cancel was called for them
//   clear=FUNCTION   ends the four
// "MPI_Irecv long" is MPI_Irecv with memory for more than kEager bytes, in `hold` and `late`.
#pragma once

#include <string>

#include "stub.hpp"

namespace stub {

// Call first in each function of MPI. Blocks if the function hangs. Returns an error code if it is to fail.
int enter(const char* function);
bool is_held(const std::string& function);
bool is_late(const std::string& function);
// Whether this call of MPI_Test is one of those of `steps`.
bool takes_step();
// The value of a command; `otherwise` if it was not given.
std::string setting(const std::string& name, const std::string& otherwise);
std::string text_of(int code);

}  // namespace stub

// For tests, by dlsym.
extern "C" {
// Executes commands.
void backplane_stub_command(const char* commands);
// The number of things of MPI that exist: "communicators" (of the program), "groups", "messages", "requests", "types"
// (derived ones).
int backplane_stub_count(const char* what);
// The memory of the newest request of the function: what it reads, or, if it reads nothing, writes. NULL: none.
const void* backplane_stub_memory(const char* function);
// How often the function has been called. With "hanging " before its name: how often a call of it began to hang.
int backplane_stub_calls(const char* function);
}
