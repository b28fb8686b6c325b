// SPDX-License-Identifier: Apache-2.0
//
// The progress thread: the order of messages that it finds, and calls of MPI that do not return.
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

// Two messages come between the probes for a receive of any tag and for one of the second message's tag.
void ordered(const std::string& /*file*/) {
  ProcessGroup group = ProcessGroup::create(alone_options());
  std::vector<int32_t> any(1);
  std::vector<int32_t> tagged(1);
  Work first = group.irecv(any, 0, ProcessGroup::kAnyTag);
  Work second = group.irecv(tagged, 0, 6);
  hang("MPI_Improbe");
  for (const int32_t tag : {5, 6}) {
    const std::vector<int32_t> sent(1, tag);
    group.send(sent, 0, static_cast<uint32_t>(tag));
  }
  command("clear=MPI_Improbe;late=MPI_Improbe");
  first.wait();
  second.wait();
  expect(any[0] == 5 && first.received().tag == 5, "the message that was sent first, for the older receive");
  expect(tagged[0] == 6 && second.received().tag == 6, "the message with the tag");
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
