// SPDX-License-Identifier: Apache-2.0
//
// The progress thread: messages that come late, and calls of MPI that do not return.
#include <sys/resource.h>

#include <atomic>
#include <vector>

#include "stub_ranks.hpp"

namespace backplane::stub_ranks {
namespace {

// The next call of the function does not return. Returns when it has begun.
void hang(const std::string& function) {
  const int before = calls("hanging " + function);
  command("hang=" + function);
  await([&] { return calls("hanging " + function) > before; }, "a call of " + function);
}

void destroy_while_mpi_hangs() {
  ProcessGroup group = ProcessGroup::create(alone_options());
  group.barrier();
  hang("MPI_Iprobe");
  group.abort("enough");
  const auto begin = std::chrono::steady_clock::now();
  group.destroy();
  expect(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30), "destroy to end without MPI");
}

}  // namespace

// A thread does not sleep while MPI moves the data for which it waits.
void steps(const std::string& /*file*/) {
  constexpr int kSteps = 1000;  // a wait polls a few hundred times before it can sleep
  const auto sleeps = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  ProcessGroup group = ProcessGroup::create(alone_options());
  std::vector<int32_t> value(1);
  // Shows how long a call takes that finds nothing.
  failure_of(Status::kTimeout, [&] { group.recv(value, 0, 1, {.timeout = std::chrono::milliseconds(20)}); });
  command("steps=" + std::to_string(kSteps));
  const long before = sleeps();
  const int tests = calls("MPI_Test");
  group.barrier();
  expect(calls("MPI_Test") - tests > kSteps, "MPI to have been called for each step");
  const long slept = sleeps() - before;
  expect(slept < kSteps / 4,
         "no sleeps between " + std::to_string(kSteps) + " steps, but there were " + std::to_string(slept));
}

// A message that comes while its receive is taken back is received.
void late(const std::string& /*file*/) {
  ProcessGroup group = ProcessGroup::create(alone_options());
  const std::vector<int32_t> sent(1, 5);
  std::vector<int32_t> value(1);
  command("late=MPI_Irecv");
  Work work = group.irecv(value, 0, 1);
  group.send(sent, 0, 1);
  work.cancel();
  work.wait();
  expect(value[0] == 5 && work.received().bytes == sizeof(int32_t), "the message");
  command("clear=MPI_Irecv");
  expect(count("requests") == 0, "no request left");
}

// The thread is used again once MPI has returned.
void hung(const std::string& /*file*/) {
  destroy_while_mpi_hangs();
  ProcessGroup group = ProcessGroup::create(alone_options());
  group.barrier();
  command("clear=MPI_Iprobe");
  const std::vector<int32_t> sent(1, 7);
  std::vector<int32_t> value(1);
  std::atomic<bool> is_done = false;
  group.irecv(value, 0, 1).on_done([&is_done](const Error* /*failure*/) { is_done = true; });
  group.send(sent, 0, 1);
  await([&is_done] { return is_done.load(); }, "the end of an operation that no thread waits for");
  expect(value[0] == 7, "the message");
}

// The process ends while the thread is in MPI.
void stuck(const std::string& /*file*/) { destroy_while_mpi_hangs(); }

}  // namespace backplane::stub_ranks
