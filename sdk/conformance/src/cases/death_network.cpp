// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "death_after.hpp"
#include "groups.hpp"
#include "namespaces.hpp"
#include "proc.hpp"

namespace backplane::conformance {
namespace {

constexpr size_t kBeyondBuffers = size_t{8} << 20;

// Both ends see a reset, as if the peer's host had restarted.
int reset_connections(Rank& rank) {
  rank.world().mark_failed();
  int count = 0;
  for (const int connection : connected_tcp()) {
    sockaddr nobody = {};
    nobody.sa_family = AF_UNSPEC;
    // Bypasses the C library, because ThreadSanitizer would report a race with the backend's own calls.
    if (syscall(SYS_connect, connection, &nobody, sizeof nobody) == 0) ++count;
  }
  return count;
}

void end_and_open_again(Rank& rank, std::unique_ptr<Agent> agent) {
  rank.step("in abort");
  agent->abort(BP_PEER_LOST, -1, "the network has failed");
  rank.barrier();
  close_quickly(rank, std::move(agent));
}

void connection_reset(Rank& rank) {
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  rank.publish(fmt::format("connections/{}", rank.id()), std::to_string(connected_tcp().size()));
  rank.barrier();
  if (rank.await_value("connections/0") == "0") rank.skip("rank 0 keeps no TCP connections that could be reset");
  std::vector<char> in(kBeyondBuffers);
  const std::vector<char> out(kBeyondBuffers);
  const int32_t peer = rank.id() == 0 ? 1 % rank.size() : 0;
  Pending receiving = agent->irecv(peer, 2, in.data(), in.size());
  rank.barrier();
  if (rank.id() == 0) {
    rank.step("resetting its connections");
    if (reset_connections(rank) == 0) rank.harness_error("no connection can be reset");
  }
  rank.barrier();
  rank.step("using a group whose connections were reset");
  Pending sending = agent->isend(peer, 3, out.data(), out.size());
  end_somehow(rank, *agent, receiving, rank.scaled(kSecond), "a recv over a connection that was reset");
  end_somehow(rank, *agent, sending, rank.scaled(kSecond), "a send over a connection that was reset");
  end_and_open_again(rank, std::move(agent));
  rank.step("using a new group after connections were reset");
  exchange_in_new_group(rank);
}

// Packets are dropped silently: no connection breaks, nothing arrives.
void black_hole(Rank& rank) {
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  std::vector<char> in(kBeyondBuffers);
  const std::vector<char> out(kBeyondBuffers);
  Pending sending = agent->isend(rank.next(), 2, out.data(), out.size());
  rank.barrier();
  rank.world().mark_failed();
  if (rank.id() == 0 && !set_loopback(false)) {
    rank.harness_error(fmt::format("cannot take loopback down: {}", std::strerror(errno)));
  }
  rank.barrier();
  rank.step("receiving while the network swallows everything");
  bp_op op = recv_op(rank.previous(), 2, in.data(), in.size());
  op.timeout_ns = rank.scaled(kSecond);
  op.flags = BP_OP_SYNC;
  const Stopwatch watch;
  Pending receiving = agent->submit(op);
  const Outcome received = receiving.wait(rank.scaled(kSecond));
  rank.check_time(watch.took(), rank.scaled(5 * kSecond / 2),
                  fmt::format("a recv with a timeout of 1 s (scaled) returns, as {},", status_name(received.status)));
  end_somehow(rank, *agent, receiving, 0, "a recv without a network");
  end_somehow(rank, *agent, sending, 0, "a send without a network");
  end_and_open_again(rank, std::move(agent));
}

}  // namespace

std::vector<Case> death_network_cases() {
  const Needs two = {.ranks = 2, .processes = true};
  return {
      Case("connection-reset", "a connection reset ends operations, not processes", connection_reset, two),
      Case("black-hole", "deadlines, abort and destroy hold when the network drops all packets", black_hole, two,
           {.own_network = true}),
  };
}

}  // namespace backplane::conformance
