// SPDX-License-Identifier: Apache-2.0
//
// The option `direct`: MPI works on the program's buffers, and the program gets them back only from MPI. The stub reads
// and writes them at each of its calls, so that AddressSanitizer reports a buffer that was freed early.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "stub_ranks.hpp"

namespace backplane::stub_ranks {
namespace {

constexpr size_t kCount = 100'000;

struct DirectBuffers {
  std::vector<int32_t> in = std::vector<int32_t>(kCount, 1);
  std::vector<int32_t> out = std::vector<int32_t>(2 * kCount, 0);
  Blocks blocks{{kCount}, {kCount}};  // in the second half

  bool contain(const void* memory) const {
    const auto* const at = static_cast<const int32_t*>(memory);
    return (at >= in.data() && at < in.data() + in.size()) || (at >= out.data() && at < out.data() + out.size());
  }
};

// An operation by the function of MPI that it uses, in a group of one.
struct DirectOperation {
  const char* function;
  Work (*begin)(ProcessGroup&, DirectBuffers&, const CallOptions&);
};

constexpr DirectOperation kDirectOperations[] = {
    {"MPI_Isend", [](ProcessGroup& g, DirectBuffers& b, const CallOptions& o) { return g.send(b.in, 0, 1, o); }},
    {"MPI_Irecv long",
     [](ProcessGroup& g, DirectBuffers& b, const CallOptions& o) {
       g.send(b.in, 0, 1);
       return g.recv(b.out, 0, 1, o);
     }},
    {"MPI_Iallreduce",
     [](ProcessGroup& g, DirectBuffers& b, const CallOptions& o) { return g.all_reduce(b.in, ReduceOp::kSum, o); }},
    {"MPI_Igatherv",
     [](ProcessGroup& g, DirectBuffers& b, const CallOptions& o) { return g.gatherv(b.in, b.out, b.blocks, 0, o); }},
    {"MPI_Ialltoallv",
     [](ProcessGroup& g, DirectBuffers& b, const CallOptions& o) {
       return g.all_to_allv(b.out, b.blocks, b.in, Blocks{{kCount}, {}}, o);
     }},
};

struct DirectEnding {
  const char* name;
  Status status;
  void (*end)(ProcessGroup&, Work&);  // NULL: by its timeout
};

constexpr DirectEnding kDirectEndings[] = {
    {"timeout", Status::kTimeout, nullptr},
    {"cancel", Status::kCancelled, [](ProcessGroup& /*group*/, Work& work) { work.cancel(); }},
    {"abort", Status::kCancelled, [](ProcessGroup& group, Work& /*work*/) { group.abort("enough"); }},
    {"destroy", Status::kCancelled, [](ProcessGroup& group, Work& /*work*/) { group.destroy(); }},
};

const DirectEnding& wanted_ending() {
  const std::string wanted = std::getenv("BACKPLANE_TEST_ENDING");
  for (const DirectEnding& ending : kDirectEndings) {
    if (ending.name == wanted) return ending;
  }
  throw std::runtime_error("no ending " + wanted);
}

// MPI completes the request when the operation has been given up; before that, the program does not get its buffers.
void give_back(const DirectOperation& operation, const DirectEnding& ending) {
  const std::string function = operation.function;
  const std::string what = function + " ended by " + ending.name;
  {
    DirectBuffers buffers;
    ProcessGroup group = ProcessGroup::create(alone_options("mpi?direct=60s"));
    command("hold=" + function);
    Work work = operation.begin(group, buffers, {.async_op = true, .timeout = kTimeout});
    await([&] { return !work.is_completed() && stub_ranks::memory(function) != nullptr; }, "a request of " + what);
    expect(buffers.contain(stub_ranks::memory(function)), "MPI to have the program's buffer of " + what);
    ending.end(group, work);
    const int before = calls("MPI_Test");
    await([&] { return calls("MPI_Test") > before + 3; }, "MPI to be asked about the request of " + what);
    command("clear=" + function);
    failure_of(ending.status, [&work] { work.wait(); });
    expect(count("requests") == 0, "no request left after " + what);
  }
  ProcessGroup next = ProcessGroup::create(alone_options());
  for (int i = 0; i < 3; ++i) next.barrier();
}

}  // namespace

// BACKPLANE_TEST_ENDING says how the operations end: by an ending that does not block.
void direct(const std::string& /*file*/) {
  for (const DirectOperation& operation : kDirectOperations) give_back(operation, wanted_ending());
}

// A receive that has no message yet has no memory of the program, and ends at once.
void direct_unmatched(const std::string& /*file*/) {
  ProcessGroup group = ProcessGroup::create(alone_options("mpi?direct=1ms"));
  std::vector<int32_t> data(kCount, 7);
  failure_of(Status::kTimeout, [&] { group.recv(data, 0, 1, {.timeout = std::chrono::milliseconds(20)}); });
  Work work = group.irecv(data, 0, 1);
  work.cancel();
  failure_of(Status::kCancelled, [&work] { work.wait(); });
  std::vector<int32_t> small(1, 3);
  group.send(small, 0, 2);
  group.recv(data, 0, 2);
  expect(data[0] == 3 && data[1] == 7, "a short message, and the rest of the buffer as it was");
  group.send(data, 0, 3);
  const std::string text = failure_of(Status::kInvalid, [&] { group.recv(small, 0, 3); });
  expect(text.find("has 400000 bytes") != std::string::npos, "the size in: " + text);
}

// MPI does not complete the request: the process ends. Synchronous operations only by their timeout.
void direct_killed(const std::string& /*file*/) {
  const DirectEnding& ending = wanted_ending();
  DirectBuffers buffers;
  ProcessGroup group = ProcessGroup::create(alone_options("mpi?direct=50ms"));
  command("hold=MPI_Iallreduce");
  if (ending.end == nullptr) {
    group.all_reduce(buffers.in, ReduceOp::kSum, {.timeout = std::chrono::milliseconds(20)});
  } else {
    Work work = group.all_reduce(buffers.in, ReduceOp::kSum, {.async_op = true, .timeout = kTimeout});
    ending.end(group, work);
    work.wait();
  }
}

}  // namespace backplane::stub_ranks
