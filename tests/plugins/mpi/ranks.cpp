// SPDX-License-Identifier: Apache-2.0
//
// A rank of group_test.cpp: "mpi_ranks SCENARIO FILE" under a launcher of MPI. The ranks meet in the file. Prints
// "rank N passed", or what failed.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"

namespace {

using backplane::Blocks;
using backplane::Error;
using backplane::GroupOptions;
using backplane::ProcessGroup;
using backplane::ReduceOp;
using backplane::Status;
using backplane::Store;

constexpr auto kTimeout = std::chrono::seconds(60);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kMany = 6'000;  // sanitizers record each access to an element
constexpr uint64_t kLong = 100'000;
#else
constexpr uint64_t kMany = 60'000;
constexpr uint64_t kLong = 500'000;
#endif

int number(const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr) return std::atoi(value);
  }
  return -1;
}
int rank_of_mpi() { return number({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}); }
int size_of_mpi() { return number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); }

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}

template <typename Call>
std::string failure_of(Status status, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    expect(error.status() == status, "another status than that of: " + std::string(error.what()));
    return error.what();
  }
  throw std::runtime_error("expected: a failure");
}

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

template <typename T>
std::vector<T> values(int rank, uint64_t count) {
  std::vector<T> result(count);
  for (uint64_t i = 0; i < count; ++i) result[i] = static_cast<T>(static_cast<int>(i % 50) + 3 * rank);
  return result;
}

template <typename T>
void reduce(ProcessGroup& group, ReduceOp op, const std::function<T(T, T)>& combine) {
  const int size = group.world_size();
  const int rank = group.rank();
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{7}, kMany}) {
    std::vector<T> expected = values<T>(0, count * static_cast<uint64_t>(size));
    for (int other = 1; other < size; ++other) {
      const auto theirs = values<T>(other, expected.size());
      for (uint64_t i = 0; i < expected.size(); ++i) expected[i] = combine(expected[i], theirs[i]);
    }
    const auto in = values<T>(rank, expected.size());
    std::vector<T> out(in.size());
    group.all_reduce(in, out, op);
    expect(out == expected, "the result of all_reduce");
    out = in;
    group.all_reduce(out, op);
    expect(out == expected, "the result of all_reduce in place");
    std::vector<T> at_root(rank == 1 ? in.size() : 0);
    group.reduce(in, at_root, 1, op);
    expect(rank != 1 || at_root == expected, "the result of reduce");
    std::vector<T> block(count);
    group.reduce_scatter(in, block, op);
    const auto begin = expected.begin() + static_cast<int64_t>(count) * rank;
    expect(block == std::vector<T>(begin, begin + static_cast<int64_t>(count)), "the result of reduce_scatter");
  }
}

void reductions(ProcessGroup& group) {
  reduce<int32_t>(group, ReduceOp::kSum, [](int32_t a, int32_t b) { return a + b; });
  reduce<int8_t>(group, ReduceOp::kSum, [](int8_t a, int8_t b) { return static_cast<int8_t>(a + b); });
  reduce<int64_t>(group, ReduceOp::kMin, [](int64_t a, int64_t b) { return std::min(a, b); });
  reduce<uint16_t>(group, ReduceOp::kMax, [](uint16_t a, uint16_t b) { return std::max(a, b); });
  reduce<uint32_t>(group, ReduceOp::kBitXor, [](uint32_t a, uint32_t b) { return a ^ b; });
  reduce<uint64_t>(group, ReduceOp::kProd, [](uint64_t a, uint64_t b) { return a * b; });
  reduce<float>(group, ReduceOp::kSum, [](float a, float b) { return a + b; });
  reduce<double>(group, ReduceOp::kSum, [](double a, double b) { return a + b; });
  reduce<double>(group, ReduceOp::kMax, [](double a, double b) { return std::max(a, b); });  // the core's
}

void moves(ProcessGroup& group) {
  const int size = group.world_size();
  const int rank = group.rank();
  const auto width = static_cast<uint64_t>(size);
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, kMany / 2}) {
    auto data = values<int32_t>(rank, count);
    group.broadcast(data, 1);
    expect(data == values<int32_t>(1, count), "the data of broadcast");
    const auto mine = values<double>(rank, count);
    std::vector<double> expected;
    for (int other = 0; other < size; ++other) {
      const auto theirs = values<double>(other, count);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    std::vector<double> all(rank == 0 ? count * width : 0);
    group.gather(mine, all, 0);
    expect(rank != 0 || all == expected, "the blocks of gather");
    std::vector<double> back(count);
    group.scatter(all, back, 0);
    expect(back == mine, "the block of scatter");
    all.assign(count * width, 0);
    group.all_gather(mine, all);
    expect(all == expected, "the blocks of all_gather");
    std::vector<double> turned(count * width);
    group.all_to_all(all, turned);
    for (uint64_t i = 0; i < turned.size(); ++i) {
      expect(turned[i] == expected[static_cast<uint64_t>(rank) * count + i % count], "the blocks of all_to_all");
    }
  }
  group.barrier();
}

// Rank r has r + 1 times `unit` elements, between which there are gaps.
void blocks(ProcessGroup& group, uint64_t unit) {
  const int size = group.world_size();
  const int rank = group.rank();
  Blocks blocks;
  for (int other = 0; other < size; ++other) {
    blocks.counts.push_back(unit * (static_cast<uint64_t>(other) + 1));
    blocks.displs.push_back(10 * unit * static_cast<uint64_t>(other));
  }
  const auto total = 10 * unit * static_cast<uint64_t>(size);
  const auto mine = values<int16_t>(rank, unit * (static_cast<uint64_t>(rank) + 1));
  std::vector<int16_t> expected(total, -1);
  for (int other = 0; other < size; ++other) {
    const auto theirs = values<int16_t>(other, unit * (static_cast<uint64_t>(other) + 1));
    std::copy(theirs.begin(), theirs.end(),
              expected.begin() + static_cast<int64_t>(blocks.displs[static_cast<size_t>(other)]));
  }
  std::vector<int16_t> all(total, -1);
  group.all_gatherv(mine, all, blocks);
  expect(all == expected, "the blocks of all_gatherv, and nothing else");
  std::vector<int16_t> gathered(total, -1);
  group.gatherv(mine, gathered, blocks, 0);
  expect(rank != 0 || gathered == expected, "the blocks of gatherv");
  std::vector<int16_t> back(mine.size());
  group.scatterv(expected, blocks, back, 0);
  expect(back == mine, "the block of scatterv");
  std::vector<int16_t> reduced(mine.size());
  group.reduce_scatterv(expected, blocks, reduced);
  for (size_t i = 0; i < reduced.size(); ++i) expect(reduced[i] == size * mine[i], "the block of reduce_scatterv");
  Blocks ones;  // as many from each
  ones.counts.assign(static_cast<size_t>(size), unit * (static_cast<uint64_t>(rank) + 1));
  std::vector<int16_t> turned(static_cast<size_t>(size) * mine.size());
  group.all_to_allv(expected, blocks, turned, ones);
  for (size_t i = 0; i < turned.size(); ++i) expect(turned[i] == mine[i % mine.size()], "the blocks of all_to_allv");
}

void asynchronous(ProcessGroup& group) {
  std::vector<std::vector<int32_t>> data;
  std::vector<backplane::Work> works;
  for (int i = 0; i < 8; ++i) data.push_back(values<int32_t>(group.rank(), 5'000));
  for (auto& each : data) works.push_back(group.all_reduce(each, ReduceOp::kSum, {.async_op = true}));
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  std::vector<int32_t> expected(5'000);
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto theirs = values<int32_t>(rank, expected.size());
    std::transform(theirs.begin(), theirs.end(), expected.begin(), expected.begin(), std::plus<>());
  }
  for (const auto& each : data) expect(each == expected, "the sums of asynchronous all_reduces");
}

void collectives(ProcessGroup& group) {
  reductions(group);
  moves(group);
  for (const uint64_t unit : {uint64_t{1}, uint64_t{200}}) blocks(group, unit);
  asynchronous(group);
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
    group.send(token, 0, kBegun);
    const std::string text = failure_of(Status::kCancelled, [&] { work.wait(); });
    expect(text.find("enough") != std::string::npos, "the reason in: " + text);
  }
  failure_of(Status::kCancelled, [&] { group.barrier(); });
}

// A collective to which a rank does not come.
void deadline(const std::string& file) {
  ProcessGroup group = reversed(file, "mpi");
  group.barrier();
  std::vector<int32_t> data(300'000, 1);
  const auto begin = std::chrono::steady_clock::now();
  if (group.rank() == 0) {
    failure_of(Status::kTimeout, [&] { group.recv(data, 1, 1, {.timeout = std::chrono::milliseconds(500)}); });
  } else {
    bool failed = false;
    try {
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

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(const std::string&)> scenarios = {
      {"world", world}, {"direct", direct},     {"messages", messages_alone}, {"own", own_mpi},
      {"abort", abort}, {"deadline", deadline}, {"local", local_scope},       {"fallback", fallback}};
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
