// SPDX-License-Identifier: Apache-2.0
//
// A rank that leaves everything open at its end, under `backplane run`. The argument chooses:
//
//   return: sends messages and returns from main; each rank's last operation is one that its peers complete later.
//   exit: the same, and calls exit on another thread.
//   busy: returns from main while a thread waits, or begins to wait, for a message that never comes.
//   static: destroys the group in the destructor of a static object.
//   call: RPC; worker 0 returns from main once its function has been called.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <latch>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backplane/backplane.hpp"
#include "backplane/rpc.hpp"

namespace {

using backplane::ProcessGroup;

constexpr int kMessages = 50;

std::optional<ProcessGroup> kept;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::_Exit(3);
}

// Each rank sends to the next one, which may receive long after the sender has left.
void exchange(ProcessGroup group) {
  const int world = group.world_size();
  std::vector<int> all(static_cast<size_t>(world));
  const int own = group.rank();
  group.all_gather(backplane::as_buffer(own), all);
  for (int rank = 0; rank < world; ++rank) require(all[static_cast<size_t>(rank)] == rank, "all_gather");
  const int next = (group.rank() + 1) % world;
  const int previous = (group.rank() + world - 1) % world;
  std::vector<int> message(1000);
  if (group.rank() == 0) {
    for (int i = 0; i < kMessages; ++i) {
      message.assign(message.size(), i);
      group.send(message, next);
    }
  } else {
    for (int i = 0; i < kMessages; ++i) {
      group.recv(message, previous);
      require(message.front() == i && message.back() == i, "message");
      if (next != 0) group.send(message, next);
    }
  }
}

int finish(const std::string& how) {
  if (how == "exit") std::thread([] { std::exit(0); }).join();
  return 0;
}

int message(const std::string& how) {
  ProcessGroup group = backplane::init_process_group();
  ProcessGroup half = group.split(group.rank() % 2);
  exchange(half);
  exchange(group);
  if (how == "static") kept = group;
  return finish(how);
}

int busy() {
  ProcessGroup group = backplane::init_process_group();
  std::latch begun(1);
  std::thread([group, &begun]() mutable {
    int never = 0;
    begun.count_down();
    group.recv(backplane::as_buffer(never), (group.rank() + 1) % group.world_size(), 7);  // fails: ends the process
  }).detach();
  begun.wait();
  int value = 0;
  group.all_reduce(backplane::as_buffer(value));
  return 0;
}

std::latch called(3);

int call() {
  namespace rpc = backplane::rpc;
  rpc::register_function("count", [](int value) {
    called.count_down();
    return value + 1;
  });
  const int rank = std::atoi(std::getenv("RANK"));
  const rpc::Worker worker = rpc::init_rpc("worker" + std::to_string(rank));
  if (rank == 0) {
    called.wait();
  } else {
    require(worker.rpc_sync<int>(0, "count", rank) == rank + 1, "reply");
  }
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  const std::string how = arguments[1];
  if (how == "busy") return busy();
  return how == "call" ? call() : message(how);
}
