// SPDX-License-Identifier: Apache-2.0
//
// Operations that end while MPI still uses their memory. The stub reads and writes that memory at each of its calls, so
// that AddressSanitizer reports memory that was freed early.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <cstdlib>
#include <vector>

#include "stub_ranks.hpp"

namespace backplane::stub_ranks {
namespace {

struct Buffers {
  explicit Buffers(size_t count) : in(count, 1), out(count, 0), blocks{{count}, {}} {}

  std::vector<int32_t> in;
  std::vector<int32_t> out;
  Blocks blocks;
};

// An operation by the function of MPI that it uses, in a group of one.
struct Operation {
  const char* function;
  Work (*begin)(ProcessGroup&, Buffers&, const CallOptions&);
  int requests = 1;
};

constexpr Operation kOperations[] = {
    {"MPI_Isend", [](ProcessGroup& g, Buffers& b, const CallOptions& o) { return g.send(b.in, 0, 1, o); },
     2},  // the announcement and the payload
    {"MPI_Irecv", [](ProcessGroup& g, Buffers& b, const CallOptions& o) { return g.recv(b.out, 0, 1, o); }},
    {"MPI_Irecv long",
     [](ProcessGroup& g, Buffers& b, const CallOptions& o) {
       g.send(b.in, 0, 1);
       return g.recv(b.out, 0, 1, o);
     }},
    {"MPI_Ireduce",
     [](ProcessGroup& g, Buffers& b, const CallOptions& o) { return g.reduce(b.in, b.out, 0, ReduceOp::kSum, o); }},
    {"MPI_Iallreduce",
     [](ProcessGroup& g, Buffers& b, const CallOptions& o) { return g.all_reduce(b.out, ReduceOp::kSum, o); }},
    {"MPI_Igather", [](ProcessGroup& g, Buffers& b, const CallOptions& o) { return g.gather(b.in, b.out, 0, o); }},
    {"MPI_Igatherv",
     [](ProcessGroup& g, Buffers& b, const CallOptions& o) { return g.gatherv(b.in, b.out, b.blocks, 0, o); }},
    {"MPI_Iscatterv",
     [](ProcessGroup& g, Buffers& b, const CallOptions& o) { return g.scatterv(b.in, b.blocks, b.out, 0, o); }},
    {"MPI_Iallgatherv",
     [](ProcessGroup& g, Buffers& b, const CallOptions& o) { return g.all_gatherv(b.in, b.out, b.blocks, o); }},
    {"MPI_Ireduce_scatter",
     [](ProcessGroup& g, Buffers& b, const CallOptions& o) {
       return g.reduce_scatterv(b.in, b.blocks, b.out, ReduceOp::kSum, o);
     }},
    {"MPI_Ialltoallv", [](ProcessGroup& g, Buffers& b,
                          const CallOptions& o) { return g.all_to_allv(b.in, b.blocks, b.out, b.blocks, o); }},
};

// How the operation ends while MPI has its memory.
struct Ending {
  const char* name;
  Status status;
  void (*end)(ProcessGroup&, Work&);  // NULL: by its timeout
};

constexpr Ending kEndings[] = {
    {"timeout", Status::kTimeout, nullptr},
    {"cancel", Status::kCancelled, [](ProcessGroup& /*group*/, Work& work) { work.cancel(); }},
    {"abort", Status::kCancelled, [](ProcessGroup& group, Work& /*work*/) { group.abort("enough"); }},
    {"destroy", Status::kCancelled, [](ProcessGroup& group, Work& /*work*/) { group.destroy(); }},
};

void check_alive(const void* memory, bool is_alive, const std::string& what) {
#ifdef __SANITIZE_ADDRESS__
  expect(__asan_address_is_poisoned(memory) == (is_alive ? 0 : 1), what);
#else
  static_cast<void>(memory);
  static_cast<void>(is_alive);
  static_cast<void>(what);
#endif
}

void abandon(const Operation& operation, const Ending& ending, size_t size) {
  const std::string function = operation.function;
  const std::string what = function + " ended by " + ending.name;
  const void* memory = nullptr;
  {
    Buffers buffers(size);
    ProcessGroup group = ProcessGroup::create(alone_options());
    command("hold=" + function);
    CallOptions options = {.async_op = true, .timeout = kTimeout};
    if (ending.end == nullptr) options.timeout = std::chrono::milliseconds(500);
    Work work = operation.begin(group, buffers, options);
    if (ending.end != nullptr) {
      await([&] { return !work.is_completed() && stub_ranks::memory(function) != nullptr; }, "a request of " + what);
      memory = stub_ranks::memory(function);
      ending.end(group, work);
    }
    failure_of(ending.status, [&work] { work.wait(); });
    if (memory == nullptr) memory = stub_ranks::memory(function);
    expect(count("requests") == operation.requests && memory != nullptr, "MPI to have the memory of " + what);
  }
  // The program's buffers and the group no longer exist.
  ProcessGroup next = ProcessGroup::create(alone_options());
  for (int i = 0; i < 3; ++i) next.barrier();
  expect(count("requests") == operation.requests, "a request that does not complete after " + what);
  check_alive(memory, true, "memory that outlives " + what);
  command("clear=" + function);
  const auto is_completed = [&next] {
    next.barrier();
    return count("requests") == 0;
  };
  await(is_completed, "the request of " + what + " to be completed");
  check_alive(memory, false, "memory to be freed after " + what);
}

}  // namespace

// BACKPLANE_TEST_ENDING says how the operations end.
void abandoned(const std::string& /*file*/) {
  constexpr size_t kSmall = 20'000;
  constexpr size_t kLarge = 100'000;  // has memory of a pool
  const std::string wanted = std::getenv("BACKPLANE_TEST_ENDING");
  for (const Ending& ending : kEndings) {
    if (ending.name != wanted) continue;
    for (const Operation& operation : kOperations) {
      abandon(operation, ending, kLarge);
      if (ending.end != nullptr) abandon(operation, ending, kSmall);
    }
    return;
  }
  expect(false, "an ending named " + wanted);
}

}  // namespace backplane::stub_ranks
