// SPDX-License-Identifier: Apache-2.0
//
// A rank of group_test.cpp: "mpi_ranks SCENARIO FILE" under a launcher of MPI. The ranks meet in the file. Prints
// "rank N passed", or what failed.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"
#include "ranks.hpp"

namespace {

using backplane::Error;
using backplane::GroupOptions;
using backplane::ProcessGroup;
using backplane::ReduceOp;
using backplane::Status;
using backplane::Store;
using backplane::mpi_ranks::collectives;
using backplane::mpi_ranks::expect;
using backplane::mpi_ranks::failure_of;
using backplane::mpi_ranks::kLong;
using backplane::mpi_ranks::message_lengths;
using backplane::mpi_ranks::probed_messages;
using backplane::mpi_ranks::small_all_reduces;
using backplane::mpi_ranks::values;

constexpr auto kTimeout = std::chrono::seconds(60);

int number(const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr) return std::atoi(value);
  }
  return -1;
}
int rank_of_mpi() { return number({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}); }
int size_of_mpi() { return number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); }

// The ranks of the group are those of MPI's world in reverse.
ProcessGroup reversed(const std::string& file, const std::string& backend) {
  GroupOptions options;
  options.backend = backend;
  options.store = Store::file(file);
  options.world_size = size_of_mpi();
  options.rank = options.world_size - 1 - rank_of_mpi();
  options.timeout = kTimeout;
  options.name = "reversed";
  return ProcessGroup::create(options);
}

void windows(ProcessGroup& group) {
  const int next = (group.rank() + 1) % group.world_size();
  const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
  for (const uint64_t count : {uint64_t{1}, uint64_t{2'000}, kLong}) {
    std::vector<std::vector<int32_t>> received(6, std::vector<int32_t>(count));
    std::vector<std::vector<int32_t>> sent;
    std::vector<backplane::Work> works;
    for (int i = 0; i < 6; ++i) sent.push_back(values<int32_t>(10 * group.rank() + i, count));
    for (auto& each : received) works.push_back(group.irecv(each, previous, 5));
    for (const auto& each : sent) works.push_back(group.isend(each, next, 5));
    for (auto& work : works) work.wait();
    for (int i = 0; i < 6; ++i) {
      expect(received[static_cast<size_t>(i)] == values<int32_t>(10 * previous + i, count), "messages in order");
    }
  }
}

void matching(ProcessGroup& group) {
  std::vector<int32_t> value(1);
  if (group.rank() == 0) {
    for (int i = 1; i < group.world_size(); ++i) {
      const auto received = group.recv(value, ProcessGroup::kAnySource, ProcessGroup::kAnyTag).received();
      expect(received.tag == 400'000U + static_cast<uint64_t>(received.source), "the tag of the sender");
      expect(value[0] == received.source && received.bytes == 4, "the value and size");
    }
    group.barrier();
    group.recv(value, 1, 8);  // the second that was sent
    expect(value[0] == 8, "the message with tag 8");
    group.recv(value, 1, 7);
    expect(value[0] == 7, "the message with tag 7");
    const std::string text = failure_of(Status::kInvalid, [&] { group.recv(value, 1, 9); });
    expect(text.find("40000 bytes") != std::string::npos, "the size of the long message in: " + text);
    failure_of(Status::kTimeout, [&] { group.recv(value, 1, 10, {.timeout = std::chrono::milliseconds(20)}); });
  } else {
    value[0] = group.rank();
    group.send(value, 0, 400'000U + static_cast<uint32_t>(group.rank()));
    group.barrier();
  }
  if (group.rank() == 1) {
    for (const uint32_t tag : {7U, 8U}) {
      value[0] = static_cast<int32_t>(tag);
      group.send(value, 0, tag);
    }
    const std::vector<int32_t> too_long(10'000);
    group.send(too_long, 0, 9);
  }
  group.barrier();
  const std::string text = failure_of(Status::kUnsupported, [&] { group.send(value, 0, 1U << 19U); });
  expect(text.find("2^19") != std::string::npos, "the limit of tags in: " + text);
  const auto mine = values<int32_t>(group.rank(), 100'000);
  std::vector<int32_t> own(mine.size());
  auto work = group.irecv(own, group.rank(), 3);
  group.send(mine, group.rank(), 3);
  work.wait();
  expect(own == mine, "a message to oneself");
}

void messages(ProcessGroup& group) {
  windows(group);
  matching(group);
  message_lengths(group);
  probed_messages(group);
  expect(group.broadcast_object("object", 0) == "object", "an object");
}

void subgroups(ProcessGroup& group) {
  ProcessGroup ends = group.new_group({0, group.world_size() - 1});
  if (group.rank() == 0 || group.rank() == group.world_size() - 1) {
    std::vector<int32_t> data(1, ends.rank() + 1);
    ends.all_reduce(data);
    expect(data[0] == 3, "the sum of a subgroup");
  }
  for (int i = 0; i < 20; ++i) {  // communicators are freed
    ProcessGroup half = group.split(group.rank() % 2);
    half.barrier();
  }
}

void world(const std::string& file) {
  ProcessGroup group = reversed(file, "mpi");
  collectives(group);
  messages(group);
  subgroups(group);
  group.barrier();
}

void all_reduces(const std::string& file) {
  for (const char* backend : {"mpi", "mpi?direct=60s"}) {
    ProcessGroup group = reversed(file + backend, backend);
    small_all_reduces(group);
    group.barrier();
  }
}

// MPI works on the buffers of the program, except small ones.
void direct(const std::string& file) {
  ProcessGroup group = reversed(file, "mpi?direct=60s");
  collectives(group);
  messages(group);
  group.barrier();
}

// Collectives of the core over MPI's messages.
void messages_alone(const std::string& file) {
  ProcessGroup group = reversed(file, "mpi?native=false");
  collectives(group);
  group.barrier();
}

// A program that uses MPI itself initialises and finalises it.
void own_mpi(const std::string& file) {
  const char* const name = number({"OMPI_COMM_WORLD_RANK"}) >= 0 ? "libmpi.so.40" : "libmpich.so.12";
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  expect(library != nullptr, "the library of MPI");
  const auto init = reinterpret_cast<int (*)(int*, char***, int, int*)>(::dlsym(library, "MPI_Init_thread"));
  const auto finalized = reinterpret_cast<int (*)(int*)>(::dlsym(library, "MPI_Finalized"));
  const auto finalize = reinterpret_cast<int (*)()>(::dlsym(library, "MPI_Finalize"));
  constexpr int kMultiple = 3;
  int level = 0;
  expect(init(nullptr, nullptr, kMultiple, &level) == 0, "MPI_Init_thread");
  {
    ProcessGroup group = reversed(file, "mpi");
    std::vector<int32_t> data(1, 1);
    group.all_reduce(data);
    expect(data[0] == size_of_mpi(), "the sum");
  }
  int is_finalized = 0;
  expect(finalized(&is_finalized) == 0 && is_finalized == 0, "MPI is left to the program");
  expect(finalize() == 0, "MPI_Finalize");
}

// A rank aborts; the others, whose collective or receive has begun, end with its reason.
void abort(const std::string& file) {
  ProcessGroup group = reversed(file, "mpi");
  constexpr uint32_t kBegun = 2;
  std::vector<int32_t> data(1'000'000);
  std::vector<int32_t> token(1);
  if (group.rank() == 0) {
    for (int rank = 1; rank < group.world_size(); ++rank) group.recv(token, rank, kBegun);
    group.abort("enough");
  } else {
    auto work = group.rank() == 1 ? group.irecv(data, 0, 1)
                                  : group.all_reduce(data, ReduceOp::kSum, {.async_op = true, .timeout = kTimeout});
    const auto sent = group.isend(token, 0, kBegun);  // the abort may follow its arrival before a wait for it ends
    const std::string text = failure_of(Status::kCancelled, [&] { work.wait(); });
    expect(text.find("enough") != std::string::npos, "the reason in: " + text);
  }
  failure_of(Status::kCancelled, [&] { group.barrier(); });
}

// MPI's last rank is killed, and the others are told. Under a launcher that does not end them.
void killed(const std::string& file) {
  ProcessGroup group = reversed(file, "mpi");
  if (rank_of_mpi() == size_of_mpi() - 1) {
    group.barrier();
    ::raise(SIGKILL);
    return;
  }
  std::vector<int32_t> data(300'000, 1);
  failure_of(Status::kPeerLost, [&] {
    group.barrier();  // ends here where the other rank is the first to leave it
    for (;;) group.all_reduce(data, ReduceOp::kMax);
  });
}

// A collective to which a rank does not come. The first rank to fail breaks the group of the others, which may be in
// the barrier.
void deadline(const std::string& file) {
  ProcessGroup group = reversed(file, "mpi");
  std::vector<int32_t> data(300'000, 1);
  const auto begin = std::chrono::steady_clock::now();
  if (group.rank() == 0) {
    failure_of(Status::kTimeout, [&] {
      group.barrier();
      group.recv(data, 1, 1, {.timeout = std::chrono::milliseconds(500)});
    });
  } else {
    bool failed = false;
    try {
      group.barrier();
      group.all_reduce(data, ReduceOp::kSum, {.timeout = std::chrono::milliseconds(100)});
    } catch (const Error&) {
      failed = true;
    }
    expect(failed, "a failure");
  }
  expect(std::chrono::steady_clock::now() - begin < kTimeout / 2, "an end soon after the deadline");
}

// One rank of each of two jobs: MPI is initialised, but no group is made. The program goes on without, and ends in
// order.
void fallback(const std::string& file) {
  GroupOptions options;
  options.backend = "mpi";
  options.store = Store::file(file);
  options.world_size = 2;
  options.rank = number({"BACKPLANE_TEST_JOB"});
  options.timeout = kTimeout;
  const std::string text = failure_of(Status::kUnsupported, [&] { ProcessGroup::create(options); });
  expect(text.find("not in one world of MPI") != std::string::npos, "the reason in: " + text);
}

// A group of one over the MPICH that the program has loaded outside the global scope, as Python does.
void local_scope(const std::string& /*file*/) {
  void* const library = ::dlopen("libmpich.so.12", RTLD_NOW | RTLD_LOCAL);
  expect(library != nullptr, "the library of MPI");
  GroupOptions options;
  options.backend = "mpi";
  options.store = Store::inproc();
  options.rank = 0;
  options.world_size = 1;
  ProcessGroup group = ProcessGroup::create(options);
  group.barrier();
  expect(::dlopen("libmpi.so.40", RTLD_NOW | RTLD_NOLOAD) == nullptr, "one library of MPI only");
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const std::string text = failure_of(Status::kUnsupported, [&] {
        options.store = Store::inproc();
        ProcessGroup::create(options);
      });
      ::_exit(text.find("does not survive fork") != std::string::npos ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
      ::_exit(2);
    }
  }
  int status = 0;
  expect(::waitpid(child, &status, 0) == child && status == 0, "the child to be refused");
}

// The ranks meet over the launcher's connection and end it, because they start another backend.
void too_late(const std::string& /*file*/) {
  GroupOptions options;
  options.backend = "auto";
  options.timeout = kTimeout;
  ProcessGroup group = ProcessGroup::create(options);
  const std::string text = failure_of(Status::kUnsupported, [&] { group.with_backend("mpi"); });
  expect(text.find("set MASTER_ADDR and MASTER_PORT for all ranks") != std::string::npos, "the remedy in: " + text);
  group.barrier();
}

// MPI cannot begin on the connection over which the ranks have met. Without its end the launcher would fail the job.
void without_mpi(const std::string& /*file*/) {
  GroupOptions options;
  options.backend = "mpi?library=/no/libmpi.so.12";
  options.timeout = kTimeout;
  const std::string text = failure_of(Status::kUnsupported, [&] { ProcessGroup::create(options); });
  expect(text.find("/no/libmpi.so.12") != std::string::npos, "the library in: " + text);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(const std::string&)> scenarios = {
      {"world", world},       {"direct", direct},     {"all_reduces", all_reduces}, {"messages", messages_alone},
      {"own", own_mpi},       {"abort", abort},       {"killed", killed},           {"deadline", deadline},
      {"local", local_scope}, {"fallback", fallback}, {"too-late", too_late},       {"without-mpi", without_mpi}};
  const auto scenario = scenarios.find(argc == 3 ? argv[1] : "");
  if (scenario == scenarios.end()) return 2;
  try {
    scenario->second(argv[2]);
  } catch (const std::exception& error) {
    std::printf("MPI's rank %d: %s\n", rank_of_mpi(), error.what());
    return 1;
  }
  std::printf("rank %d passed\n", rank_of_mpi());
  return 0;
}
