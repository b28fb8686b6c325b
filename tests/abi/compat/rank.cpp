// SPDX-License-Identifier: Apache-2.0
//
// One rank of a job over a plugin of another release: all kinds of operations, and failures. Requires
// BACKPLANE_BACKEND, and checks that the group uses that backend.
#include <backplane/backplane.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace {

using backplane::ProcessGroup;
using backplane::Status;
using Floats = std::vector<float>;

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: this is not true: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                                         \
    }                                                                                        \
  } while (0)

template <typename Body>
backplane::Error failure(Status expected, Body&& body) {
  try {
    body();
  } catch (const backplane::Error& e) {
    if (e.status() == expected) return e;
    std::fprintf(stderr, "failed otherwise than expected: %s\n", e.what());
    std::_Exit(1);
  }
  std::fprintf(stderr, "nothing failed\n");
  std::_Exit(1);
}

void collectives(ProcessGroup& group) {
  const auto world = static_cast<size_t>(group.world_size());
  const auto rank = static_cast<size_t>(group.rank());
  const float total = static_cast<float>(world * (world + 1)) / 2;
  constexpr size_t kCount = 1000;
  const Floats mine(kCount, static_cast<float>(rank + 1));
  Floats all(kCount * world);

  Floats sum = mine;
  group.all_reduce(sum);
  CHECK(sum.front() == total && sum.back() == total);
  group.all_gather(mine, all);
  for (size_t r = 0; r < world; ++r) CHECK(all[r * kCount] == static_cast<float>(r + 1));
  Floats part(kCount);
  group.reduce_scatter(all, part);
  CHECK(part[7] == static_cast<float>((rank + 1) * world));
  Floats swapped(all.size());
  const Floats ranks(all.size(), static_cast<float>(rank));
  group.all_to_all(ranks, swapped);
  for (size_t r = 0; r < world; ++r) CHECK(swapped[r * kCount + 3] == static_cast<float>(r));
  Floats cast = rank == 1 ? Floats(kCount, 5.0F) : Floats(kCount);
  group.broadcast(cast, 1);
  CHECK(cast.back() == 5);
  Floats reduced(kCount);
  group.reduce(mine, reduced, 0, backplane::ReduceOp::kMax);
  CHECK(rank != 0 || reduced[1] == static_cast<float>(world));
  group.barrier();
  std::vector<std::string> objects = group.all_gather_object(std::string(rank + 1, 'x'));
  for (size_t r = 0; r < world; ++r) CHECK(objects[r].size() == r + 1);
  backplane::CallOptions later;
  later.async_op = true;
  Floats again = mine;
  backplane::Work work = group.all_reduce(again, backplane::ReduceOp::kSum, later);
  work.wait();
  CHECK(again[500] == total);
}

void messages(ProcessGroup& group) {
  const int to = (group.rank() + 1) % group.world_size();
  const int from = (group.rank() + group.world_size() - 1) % group.world_size();
  const std::vector<int64_t> mine(100'000, group.rank());
  std::vector<int64_t> theirs(mine.size());
  backplane::Work recv = group.irecv(theirs, from, 3);
  backplane::Work send = group.isend(mine, to, 3);
  recv.wait();
  send.wait();
  CHECK(recv.received().source == from && recv.received().bytes == mine.size() * sizeof(int64_t));
  CHECK(theirs.front() == from && theirs.back() == from);
}

void failures(ProcessGroup& group) {
  std::vector<int64_t> data(4);
  CHECK(std::string(failure(Status::kInvalid, [&] { group.broadcast(data, 99); }).what()).size() > 10);
  // In a separate group: the timeout breaks the group of a backend that cannot cancel a recv.
  ProcessGroup pair = group.new_group({0, 1});
  if (group.rank() == 1) {
    backplane::CallOptions soon;
    soon.timeout = std::chrono::milliseconds(50);
    const auto late = failure(Status::kTimeout, [&] { pair.recv(data, 0, 77, soon); });
    CHECK(std::string(late.what()).size() > 10);
  }
  group.barrier();
}

}  // namespace

int main() {
  try {
    ProcessGroup group = backplane::init_process_group();
    const char* wanted = std::getenv("BACKPLANE_BACKEND");
    CHECK(wanted != nullptr && group.backend() == wanted);
    CHECK(group.world_size() > 1);
    collectives(group);
    messages(group);
    failures(group);
    ProcessGroup half = group.split(group.rank() % 2);
    std::vector<int> one = {1};
    half.all_reduce(one);
    CHECK(one[0] == half.world_size());
    backplane::destroy_process_group();
  } catch (const backplane::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
