// SPDX-License-Identifier: Apache-2.0
//
// The plugin mpi compared with the same MPI called directly. Run two ranks under the launcher of that MPI. "message":
// half a round trip. "iall_reduce": MPI's nonblocking call, and a wait. "stream": messages back to back until a reply
// to the last, per message.
#define OMPI_SKIP_MPICXX 1  // the C++ bindings that MPI has given up
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"
#include "programs/comparison.hpp"
#include "support/environment.hpp"

namespace backplane::bench {
namespace {

using Numbers = std::vector<float>;

int count_of(const Numbers& data) { return static_cast<int>(data.size()); }
int calls_of(uint64_t bytes) { return static_cast<int>(std::clamp<uint64_t>((1 << 20) / bytes, 1, 100)); }

// The two ways to call MPI. Errors of MPI end the job (MPI_ERRORS_ARE_FATAL).
struct Bare {
  MPI_Comm comm = MPI_COMM_NULL;
  int peer = 0;

  void all_reduce(Numbers& data) const {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), count_of(data), MPI_FLOAT, MPI_SUM, comm);
  }
  // Like the plugin, which must not block in MPI.
  void iall_reduce(Numbers& data) const {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, data.data(), count_of(data), MPI_FLOAT, MPI_SUM, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  void send(Numbers& data) const { MPI_Send(data.data(), count_of(data), MPI_FLOAT, peer, 0, comm); }
  void receive(Numbers& data) const {
    MPI_Recv(data.data(), count_of(data), MPI_FLOAT, peer, 0, comm, MPI_STATUS_IGNORE);
  }
  void send_all(Numbers& data, int count) const {
    std::vector<MPI_Request> requests(static_cast<size_t>(count));
    for (MPI_Request& each : requests) MPI_Isend(data.data(), count_of(data), MPI_FLOAT, peer, 0, comm, &each);
    MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE);
  }
};

struct Ours {
  ProcessGroup group;
  int peer = 0;

  void all_reduce(Numbers& data) { group.all_reduce(data); }
  void iall_reduce(Numbers& data) { all_reduce(data); }
  void send(Numbers& data) { group.send(data, peer); }
  void receive(Numbers& data) { group.recv(data, peer); }
  void send_all(Numbers& data, int count) {
    std::vector<Work> works;
    for (int i = 0; i < count; ++i) works.push_back(group.isend(data, peer));
    for (Work& work : works) work.wait();
  }
};

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  const std::vector<uint64_t> sizes = {4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
  for (const uint64_t bytes : sizes) all.push_back({"all_reduce", bytes, calls_of(bytes), 1});
  for (const uint64_t bytes : sizes) all.push_back({"iall_reduce", bytes, calls_of(bytes), 1});
  for (const uint64_t bytes : sizes) all.push_back({"message", bytes, calls_of(bytes), 2});
  for (const uint64_t bytes : {uint64_t{4}, uint64_t{64 << 10}, uint64_t{1 << 20}})
    all.push_back({"stream", bytes, 1, 64});
  return all;
}

// One call of a scenario; `reply` is for streams.
template <typename Side>
Action action(Side& side, int rank, const Scenario& scenario, Numbers& data, Numbers& reply) {
  if (scenario.what == "all_reduce") return [&side, &data] { side.all_reduce(data); };
  if (scenario.what == "iall_reduce") return [&side, &data] { side.iall_reduce(data); };
  if (scenario.what == "message") {
    return [&side, rank, &data] {
      if (rank == 0) side.send(data);
      side.receive(data);
      if (rank == 1) side.send(data);
    };
  }
  return [&side, rank, &data, &reply, count = static_cast<int>(scenario.per_call)] {
    if (rank == 0) {
      side.send_all(data, count);
      side.receive(reply);
    } else {
      for (int i = 0; i < count; ++i) side.receive(data);
      side.send(reply);
    }
  };
}

// Rank 0 has 1, rank 1 has 2, and afterwards both have the sum or the number of rank 0.
void check(const Action& action, const Scenario& scenario, Numbers& data, int rank, const char* who) {
  std::fill(data.begin(), data.end(), static_cast<float>(1 + rank));
  action();
  const float expected = scenario.what.ends_with("all_reduce") ? 3 : 1;
  const auto is_wrong = [expected](float each) { return each != expected; };
  if (std::any_of(data.begin(), data.end(), is_wrong)) throw std::runtime_error(std::string("wrong data from ") + who);
}

// A file of rank 0, for the rendezvous.
std::string shared_file(int rank, const test::ScopedDirectory& place) {
  std::array<char, 256> path{};
  if (rank == 0) place.file("store").copy(path.data(), path.size() - 1);
  MPI_Bcast(path.data(), static_cast<int>(path.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  return path.data();
}

void run(const Arguments& arguments) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 2) throw std::runtime_error("it needs two ranks: start it with mpirun -n 2");
  const test::ScopedDirectory place;
  const Bare bare{MPI_COMM_WORLD, 1 - rank};
  GroupOptions options;
  options.backend = arguments.options.empty() ? "mpi" : "mpi?" + arguments.options;
  options.store = Store::file(shared_file(rank, place));
  options.rank = rank;
  options.world_size = size;
  Ours ours{ProcessGroup::create(options), 1 - rank};
  std::vector<Outcome> outcomes;
  for (const Scenario& scenario : scenarios()) {
    Numbers data(scenario.bytes / sizeof(float));
    Numbers reply(1);
    const Action bare_call = action(bare, rank, scenario, data, reply);
    const Action our_call = action(ours, rank, scenario, data, reply);
    check(bare_call, scenario, data, rank, "MPI");
    check(our_call, scenario, data, rank, "the plugin");
    std::fill(data.begin(), data.end(), 0.0F);  // sums stay finite
    outcomes.push_back(compare(scenario, arguments, ours.group, bare_call, our_call));
  }
  ours.group.barrier();  // waits for the other rank
  if (rank == 0) print("MPI", outcomes, arguments.json);
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) {
  const backplane::bench::Arguments arguments = backplane::bench::parse(argc, argv);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  try {
    backplane::bench::run(arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "mpi_bench: %s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
