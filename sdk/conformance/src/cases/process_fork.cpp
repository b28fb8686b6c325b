// SPDX-License-Identifier: Apache-2.0
//
// Children that a process with a group forks. They hold copies of the backend's memory and descriptors.
#include <stdio_ext.h>
#include <unistd.h>

#include <cstdlib>

#include "backplane/base/subprocess.hpp"
#include "case.hpp"
#include "death_after.hpp"
#include "groups.hpp"
#include "proc.hpp"
#include "process_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr size_t kInFlight = size_t{2} << 20;

// A child that ends without calling the backend must not shut down what it inherited.
void fork_child(Rank& rank) {
  auto agent = rank.open();
  exchange(rank, *agent, 1, 10'000);
  std::vector<char> in(100'000);
  Pending receiving = agent->irecv(rank.previous(), 2, in.data(), in.size());
  rank.step("forking a child that does nothing");
  base::Pipe pipe = base::Pipe::open();
  if (!pipe) rank.harness_error("no pipe");
  base::Subprocess child = base::Subprocess::fork([&pipe] {
    char byte = 0;
    pipe.write.reset();
    while (read(pipe.read.get(), &byte, 1) < 0) {
    }
    return 0;
  });
  if (!child) rank.harness_error("no process");
  pipe.read.reset();
  rank.step("using a group while a forked child lives");
  const std::vector<char> out = payload(rank.id(), rank.next(), 2, in.size());
  rank.require_ok(agent->send(rank.next(), 2, out.data(), out.size()), "a send beside a forked child");
  rank.require_ok(receiving.finish(rank.hang_limit(10 * kSecond)), "a recv that was submitted before the fork");
  rank.check(in == payload(rank.previous(), rank.id(), 2, in.size()), "the bytes that were sent", "others");
  exchange(rank, *agent, 3, 10'000);
  // Writes a byte instead of closing the pipe: where ranks are threads, the children of the others also hold it open.
  if (write(pipe.write.get(), "", 1) != 1) rank.harness_error("cannot write to a pipe");
  pipe.write.reset();
  rank.step("waiting for a forked child that ends");
  const std::optional<int> status = child.wait(base::Deadline::after(rank.scaled(5 * kSecond)));
  rank.check(status == 0, "a forked child that calls _exit(0) ends so",
             status ? fmt::format("wait status {}", *status) : "it still runs");
  rank.step("using a group after a forked child has ended");
  exchange(rank, *agent, 4, 10'000);
  rank.barrier();
  agent->close();
  exchange_in_new_group(rank);
}

// The child outlives the agent. The peers may not see its end then (the child also has the connections), but destroy
// and their deadlines hold.
void fork_outlived(Rank& rank) {
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (rank.id() != 0) {
    char byte = 0;
    rank.step("waiting for a rank that destroys its group while a forked child lives");
    bp_op op = recv_op(0, 2, &byte, 1);
    op.timeout_ns = rank.scaled(2 * kSecond);
    const Outcome outcome = agent->run(op);
    rank.check(outcome.status != BP_AGAIN && !outcome.ok(), "a recv from a rank that has left fails", outcome.text());
    rank.barrier();
    close_quickly(rank, std::move(agent));
    return;
  }
  const base::Subprocess child = base::Subprocess::fork([]() -> int {
    for (;;) pause();
  });
  if (!child) rank.harness_error("no process");
  close_quickly(rank, std::move(agent));
  rank.barrier();
}

// Under a sanitizer a child skips the exit handlers that are older than the plugin. The sanitizer's own handler is one
// of them: it looks for leaks, and finds what only the parent's threads refer to.
bool is_exiting_child = false;
[[maybe_unused]] const bool handler_registered = has_sanitizer() && std::atexit([] {
                                                                      if (is_exiting_child) _exit(0);
                                                                    }) == 0;

// Runs the exit handlers and the destructors of static objects, those of the plugin included.
[[noreturn]] void exit_child() {
  is_exiting_child = true;
  __fpurge(stdout);  // the parent writes what is buffered there
  __fpurge(stderr);
  std::exit(0);
}

// A child that ends by exit, as programs do that know nothing of the group, while messages are in flight.
void fork_exit(Rank& rank) {
  auto agent = rank.open();
  exchange(rank, *agent, 1, 10'000);
  std::vector<char> in(kInFlight);
  const std::vector<char> out = payload(rank.id(), rank.next(), 2, kInFlight);
  Pending receiving = agent->irecv(rank.previous(), 2, in.data(), in.size());
  Pending sending;
  if (rank.id() % 2 == 0) sending = agent->isend(rank.next(), 2, out.data(), out.size());
  rank.step("forking a child that calls exit(0)");
  base::Subprocess child = base::Subprocess::fork([]() -> int { exit_child(); });
  if (!child) rank.harness_error("no process");
  const std::optional<int> status = child.wait(base::Deadline::after(rank.scaled(5 * kSecond)));
  rank.check(status == 0, "a forked child that calls exit(0) ends so",
             status ? fmt::format("wait status {}", *status) : "it still runs");
  rank.barrier();  // a group that this rank's child has broken is found by all ranks
  rank.step("using a group after a forked child has called exit(0)");
  if (rank.id() % 2 != 0) sending = agent->isend(rank.next(), 2, out.data(), out.size());
  rank.require_ok(receiving.finish(rank.hang_limit(10 * kSecond)),
                  "a recv in flight when a forked child calls exit(0)");
  rank.check(in == payload(rank.previous(), rank.id(), 2, in.size()), "the bytes that were sent", "others");
  rank.require_ok(sending.finish(rank.hang_limit(10 * kSecond)), "a send in flight when a forked child calls exit(0)");
  exchange(rank, *agent, 3, 10'000);
  rank.barrier();
  close_quickly(rank, std::move(agent));
}

}  // namespace

std::vector<Case> process_fork_cases() {
  return {
      Case("fork-child", "a forked child that ends at once does not affect its parent", fork_child),
      Case("fork-exit", "a forked child that calls exit ends soon and does not affect its parent", fork_exit),
      Case("fork-outlived", "a group can be destroyed while a forked child lives", fork_outlived,
           {.ranks = 2, .processes = true}),
  };
}

}  // namespace backplane::conformance
