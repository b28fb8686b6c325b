// SPDX-License-Identifier: Apache-2.0
//
// Starts of groups, and the failures of MPI's functions.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "stub_ranks.hpp"

namespace backplane::stub_ranks {
namespace {

constexpr int kMultiple = 4096;  // MPI_THREAD_MULTIPLE of the standard ABI

int from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

// Prints the failure of a start. Rank and size of the group may differ from those of MPI, and the time limit may be
// short.
void start(const std::string& file) {
  GroupOptions options = world_options(file);
  options.rank = from_environment("BACKPLANE_TEST_RANK", options.rank);
  options.world_size = from_environment("BACKPLANE_TEST_SIZE", options.world_size);
  options.timeout = std::chrono::seconds(from_environment("BACKPLANE_TEST_TIMEOUT", 50));
  try {
    ProcessGroup::create(options).barrier();
    std::printf("started\n");
  } catch (const Error& error) {
    std::printf("failed (%d): %s\n", static_cast<int>(error.status()), error.what());
  }
}

void libraries(const std::string& /*file*/) {
  const std::string stub = std::getenv("BACKPLANE_MPI_LIBRARY");
  const std::string old = std::getenv("BACKPLANE_TEST_OLD");
  { ProcessGroup::create(alone_options("mpi?library=" + stub)).barrier(); }
  expect(calls("MPI_Init_thread") == 1, "the library that was named");
  const std::string text =
      failure_of(Status::kInvalid, [&old] { ProcessGroup::create(alone_options("mpi?library=" + old)); });
  expect(text.find(stub) != std::string::npos && text.find(old) != std::string::npos, "both libraries in: " + text);
  ProcessGroup::create(alone_options("mpi?library=" + stub)).barrier();
  expect(calls("MPI_Init_thread") == 1, "one initialisation");
}

// A child of fork is refused. The parent goes on.
void forked(const std::string& /*file*/) {
  ProcessGroup group = ProcessGroup::create(alone_options());
  group.barrier();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const std::string text = failure_of(Status::kUnsupported, [] { ProcessGroup::create(alone_options()); });
      ::_exit(text.find("does not survive fork") != std::string::npos ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
      ::_exit(2);
    }
  }
  int status = 0;
  expect(::waitpid(child, &status, 0) == child && status == 0, "the child to be refused");
  group.barrier();
}

// A program that has initialised MPI: with a lower thread level it is refused. It finalises MPI itself.
void own(const std::string& /*file*/) {
  void* const library = ::dlopen(std::getenv("BACKPLANE_MPI_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  expect(library != nullptr, "the stub");
  const auto init = reinterpret_cast<int (*)(int*, char***, int, int*)>(::dlsym(library, "MPI_Init_thread"));
  const auto finalize = reinterpret_cast<int (*)()>(::dlsym(library, "MPI_Finalize"));
  int level = 0;
  expect(init(nullptr, nullptr, kMultiple, &level) == 0, "MPI_Init_thread");
  if (level == kMultiple) {
    ProcessGroup::create(alone_options()).barrier();
  } else {
    const std::string text = failure_of(Status::kUnsupported, [] { ProcessGroup::create(alone_options()); });
    expect(text.find("initialise MPI with MPI_THREAD_MULTIPLE") != std::string::npos, "the level in: " + text);
  }
  expect(calls("MPI_Init_thread") == 1 && calls("MPI_Finalize") == 0, "MPI to be left to the program");
  expect(finalize() == 0, "MPI_Finalize");
  const std::string text = failure_of(Status::kInvalid, [] { ProcessGroup::create(alone_options()); });
  expect(text.find("finalised MPI") != std::string::npos, "the reason in: " + text);
}

// Each function fails once. A message's failure leaves the group usable, a collective's breaks it.
void errors(const std::string& /*file*/) {
  std::vector<int32_t> data(1'000);
  std::vector<int32_t> out(1'000);
  // `name`: how the plugin names the function.
  const auto failed = [](const std::string& function, const auto& call, const std::string& name = "") {
    command("fail=" + function);
    const std::string text = failure_of(Status::kInternal, call);
    command("clear=" + function);
    const std::string expected =
        "mpi: " + (name.empty() ? function : name) + " failed: a fault of " + function + ", as the test wants it";
    expect(text.find(expected) != std::string::npos, expected + " in: " + text);
  };
  {
    ProcessGroup group = ProcessGroup::create(alone_options());
    failed("MPI_Isend", [&] { group.send(data, 0, 1); });
    failed("MPI_Irecv", [&] { group.recv(out, 0, 1); });
    failed("MPI_Improbe", [&] { group.probe(0, 1); });
    group.send(data, 0, 1);
    failed("MPI_Imrecv", [&] { group.probe(0, 1); });
    group.send(data, 0, 1);
    const int messages = count("messages");
    failed("MPI_Get_elements_x", [&] { group.probe(0, 1); });
    expect(count("messages") == messages, "the message whose size is unknown to be dropped");
    group.send(data, 0, 1);
    failed("MPI_Get_elements_x", [&] { group.recv(out, 0, 1); });
    command("fail=MPI_Cancel");
    failure_of(Status::kTimeout, [&] { group.recv(out, 0, 3, {.timeout = std::chrono::milliseconds(20)}); });
    command("clear=MPI_Cancel");
    failed("MPI_Test", [&] { group.send(data, 0, 2); });
    group.recv(out, 0, 2);  // the request that failed sends its message nevertheless
    group.barrier();
    failed(
        "MPI_Ibarrier", [&] { group.barrier(); }, "barrier");
  }
  for (const char* function :
       {"MPI_Comm_group", "MPI_Group_incl", "MPI_Comm_create_group", "MPI_Comm_set_errhandler", "MPI_Comm_dup"}) {
    const int groups = count("groups");
    const int communicators = count("communicators");
    failed(function, [] { ProcessGroup::create(alone_options()); });
    expect(count("groups") == groups, std::string("no group of MPI left by a failure of ") + function);
    expect(count("communicators") == communicators, std::string("no communicator left by a failure of ") + function);
  }
  ProcessGroup::create(alone_options()).barrier();
}

// A group with survivors is made although this process has a group, because it is made from that one.
void shrunk(const std::string& /*file*/) {
  ProcessGroup group = ProcessGroup::create(alone_options());
  group.abort("enough");
  ProcessGroup next = group.shrink();
  next.barrier();
  group.destroy();
  next.barrier();
}

// A program with more rights than its caller loads no MPI, but uses one that it has loaded. The file is the stub.
void secure(const std::string& stub) {
  for (const std::string& backend : {std::string("mpi"), "mpi?library=" + stub}) {
    const std::string text =
        failure_of(Status::kUnsupported, [&backend] { ProcessGroup::create(alone_options(backend)); });
    expect(text.find("set-uid") != std::string::npos, "the reason in: " + text);
  }
  expect(::dlopen(stub.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr, "the stub");
  ProcessGroup::create(alone_options()).barrier();
}

}  // namespace backplane::stub_ranks
