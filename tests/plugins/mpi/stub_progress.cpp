// SPDX-License-Identifier: Apache-2.0
//
// The progress thread: messages that come late, and calls of MPI that do not return.
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
