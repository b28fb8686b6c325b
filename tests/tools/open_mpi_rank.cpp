// SPDX-License-Identifier: Apache-2.0
//
// A program of Open MPI (libmpi.so.40) that adds up the ranks. Opens the library itself: the test is compiled without
// MPI. With the argument "early", rank 1 ends with code 3 while the others wait for it in MPI_Init; with "killed", it
// is killed in MPI.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

template <typename Function>
Function* function(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

// Until Open MPI has made the directory of that rank, and sends to the server. At most 30 s.
void wait_for_rank(int rank) {
  const char* const place = std::getenv("PMIX_SERVER_TMPDIR");
  const std::string directory = std::string(place == nullptr ? "" : place) + "/job/" + std::to_string(rank);
  for (int i = 0; i < 30'000 && ::access(directory.c_str(), F_OK) != 0; ++i) ::usleep(1'000);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const char* const own = std::getenv("RANK");
  const bool is_second = own != nullptr && std::string(own) == "1";
  if (is_second && mode == "early") {
    for (const int rank : {0, 2}) wait_for_rank(rank);
    return 3;
  }
  const char* const shared_memory = std::getenv("OMPI_MCA_btl_vader_backing_directory");
  std::printf("shared memory in %s\n", shared_memory == nullptr ? "/dev/shm" : shared_memory);
  std::fflush(stdout);
  void* const library = ::dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", ::dlerror()), 1;
  void* const world = ::dlsym(library, "ompi_mpi_comm_world");
  void* const number = ::dlsym(library, "ompi_mpi_int");
  void* const addition = ::dlsym(library, "ompi_mpi_op_sum");
  int rank = -1;
  int size = -1;
  int sum = -1;
  function<int(int*, char***)>(library, "MPI_Init")(nullptr, nullptr);
  function<int(void*, int*)>(library, "MPI_Comm_rank")(world, &rank);
  function<int(void*, int*)>(library, "MPI_Comm_size")(world, &size);
  const auto all_reduce = function<int(const void*, void*, int, void*, void*, void*)>(library, "MPI_Allreduce");
  all_reduce(&rank, &sum, 1, number, addition, world);
  std::printf("rank %d of %d: the ranks add up to %d\n", rank, size, sum);
  std::fflush(stdout);
  if (is_second && mode == "killed") ::raise(SIGKILL);
  return function<int()>(library, "MPI_Finalize")();
}
