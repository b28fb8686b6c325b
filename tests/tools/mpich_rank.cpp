// SPDX-License-Identifier: Apache-2.0
//
// A program of MPICH's ABI (libmpi.so.12) that adds up the ranks. With an argument rank 1 then calls MPI_Abort. Opens
// the library itself: the test is compiled without MPI.
#include <dlfcn.h>

#include <cstdio>

namespace {

constexpr int kWorld = 0x44000000;
constexpr int kInt = 0x4c000405;
constexpr int kSum = 0x58000003;

template <typename Function>
Function* function(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

int main(int argc, char** /*argv*/) {
  void* library = ::dlopen("libmpich.so.12", RTLD_NOW | RTLD_GLOBAL);  // its name in Debian
  if (library == nullptr) library = ::dlopen("libmpi.so.12", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", ::dlerror()), 1;
  int rank = -1;
  int size = -1;
  int sum = -1;
  function<int(int*, char***)>(library, "MPI_Init")(nullptr, nullptr);
  function<int(int, int*)>(library, "MPI_Comm_rank")(kWorld, &rank);
  function<int(int, int*)>(library, "MPI_Comm_size")(kWorld, &size);
  function<int(const void*, void*, int, int, int, int)>(library, "MPI_Allreduce")(&rank, &sum, 1, kInt, kSum, kWorld);
  std::printf("rank %d of %d: the ranks add up to %d\n", rank, size, sum);
  std::fflush(stdout);
  if (argc > 1 && rank == 1) function<int(int, int)>(library, "MPI_Abort")(kWorld, 3);
  return function<int()>(library, "MPI_Finalize")();
}
