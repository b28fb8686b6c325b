// SPDX-License-Identifier: Apache-2.0
//
// Group `init`: invalid or missing ranks, and a port in use. Every init must return.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <thread>

#include "backplane/base/descriptor.hpp"
#include "groups.hpp"
#include "init_groups.hpp"
#include "init_raw.hpp"

namespace backplane::conformance::init {
namespace {

constexpr Nanoseconds kShort = 3 * kSecond / 2;  // for init

// Tolerance of a deadline on a busy machine.
Nanoseconds grace(Rank& rank, Nanoseconds timeout) { return rank.scaled(kSecond) + timeout / 10; }

void check_in_time(Rank& rank, const Stopwatch& watch, Nanoseconds timeout, const std::string& what) {
  rank.check_time(watch.took(), timeout + grace(rank, timeout),
                  fmt::format("{} with a timeout of {} ms returns", what, timeout / kMillisecond));
}

void rank_out_of_range(Rank& rank) {
  struct RankAndSize {
    int32_t rank;
    int32_t world_size;
  };
  constexpr RankAndSize kOutOfRange[] = {{1, 1},         {-1, 1}, {5, 2},  {INT32_MAX, 2},
                                         {INT32_MIN, 2}, {0, 0},  {0, -1}, {0, INT32_MIN}};
  for (const RankAndSize& each : kOutOfRange) {
    const std::string what = fmt::format("init as rank {} of {}", each.rank, each.world_size);
    rank.step(what);
    RawInit raw(rank, what, each.rank, each.world_size, rank.scaled(kSecond));
    const Outcome outcome = raw.run();
    rank.check(outcome.status == BP_INVALID, what + " answers BP_INVALID", outcome.text());
    rank.check(outcome.ok() || outcome.error.text[0] != '\0', what + " says why", "no text");
    raw.close();
  }
}

// Joins a group with an invalid rank or size. The backend need not detect that, but must not hang.
void take_part_in_nonsense(Rank& rank, int32_t as_rank, int32_t world_size) {
  const Nanoseconds timeout = rank.scaled(kShort);
  const Stopwatch watch;
  Outcome outcome;
  Plan plan = plan_in("main", {}, kShort);
  plan.rank = as_rank;
  plan.world_size = world_size;
  const std::unique_ptr<Agent> agent = rank.try_open(plan, outcome);
  check_in_time(rank, watch, timeout, "init");
  if (agent != nullptr) {
    rank.step("sending in a group that cannot be right");
    uint32_t number = 1;
    const Stopwatch sending;
    const Nanoseconds moment = rank.scaled(kSecond / 2);
    bp_op recv = recv_op(0, 9, &number, sizeof number);
    recv.timeout_ns = moment;
    agent->run(recv);
    bp_op send = send_op(0, 9, &number, sizeof number);
    send.timeout_ns = moment;
    agent->run(send);
    check_in_time(rank, sending, 2 * moment, "a recv and a send");
    rank.step("in destroy of a group that cannot be right");
    agent->close();
  } else {
    rank.check(outcome.error.text[0] != '\0', "a failed init says why", "no text");
  }
  rank.barrier();
}

void duplicate_rank(Rank& rank) {
  const int32_t last = rank.size() - 1;
  take_part_in_nonsense(rank, rank.id() == last ? last - 1 : rank.id(), rank.size());
}

void size_mismatch(Rank& rank) {
  take_part_in_nonsense(rank, rank.id(), rank.id() == rank.size() - 1 ? rank.size() + 1 : rank.size());
}

bool names(const Outcome& outcome, int32_t rank) {
  if (outcome.error.peer_rank == rank) return true;
  const std::string text = outcome.text();
  const std::string word = fmt::format("rank {}", rank);
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if (end == text.size() || text[end] < '0' || text[end] > '9') return true;
  }
  return false;
}

void wait_for_missing(Rank& rank, int32_t missing) {
  if (rank.id() == missing) return;
  const Nanoseconds timeout = rank.scaled(kShort);
  const Stopwatch watch;
  Outcome outcome;
  const std::unique_ptr<Agent> agent = rank.try_open(plan_in("main", {}, kShort), outcome);
  check_in_time(rank, watch, timeout, "init");
  if (agent == nullptr) {
    rank.check(outcome.status == BP_TIMEOUT || outcome.status == BP_PEER_LOST,
               "BP_TIMEOUT or BP_PEER_LOST of an init that waits for a rank that does not come", outcome.text());
    rank.check(names(outcome, missing), fmt::format("an error that names rank {}, which has not come", missing),
               outcome.text());
    return;
  }
  rank.step(fmt::format("receiving from rank {}, which has never come", missing));
  const Stopwatch receiving;
  uint32_t number = 0;
  bp_op op = recv_op(missing, 9, &number, sizeof number);
  op.timeout_ns = rank.scaled(kSecond / 2);
  outcome = agent->run(op);
  check_in_time(rank, receiving, op.timeout_ns, "a recv");
  rank.check(!outcome.ok() && outcome.status != BP_AGAIN, fmt::format("a failure of a recv from rank {}", missing),
             outcome.text());
  rank.step("in destroy");
  agent->close();
}

void missing_rank_named(Rank& rank) { wait_for_missing(rank, rank.size() - 1); }
void missing_first_rank_named(Rank& rank) { wait_for_missing(rank, 0); }

// The host requests an abort of init while it waits for a rank that does not join. Runs on one rank at a time, because
// the others could notice that an aborted rank leaves.
void abort_alone(Rank& rank, const std::string& space) {
  RawInit raw(rank, space, rank.id(), rank.size(), rank.hang_limit(15 * kSecond));
  std::atomic<bool> returned = false;
  Outcome outcome;
  rank.step("in init, to be aborted");
  std::thread starter([&raw, &returned, &outcome] {
    outcome = raw.run();
    returned.store(true);
  });
  // An init that waits for other ranks reads the store or queries the host. The pause lets it block.
  const Nanoseconds limit = now() + rank.scaled(2 * kSecond);
  while (!returned.load() && !raw.waits() && now() < limit) std::this_thread::yield();
  std::string word;
  rank.world().get("harness/never", word, 100 * kMillisecond, [&returned] { return returned.load(); });
  const Stopwatch watch;
  raw.request_abort();
  starter.join();
  rank.check_time(watch.took(), rank.scaled(kSecond / 2), "the host's request to abort ends init");
  rank.check(outcome.ok() || outcome.status == BP_CANCELLED, "BP_CANCELLED, or success if init was done already",
             outcome.text());
  rank.step("in destroy");
  raw.close();
}

void abort_during_init(Rank& rank) {
  for (int32_t waiting = 0; waiting < rank.size(); ++waiting) {
    if (rank.id() == waiting) abort_alone(rank, fmt::format("waits/{}", waiting));
    rank.barrier();
  }
}

// The port is in use.
class TakenPort {
 public:
  explicit TakenPort(Rank& rank) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (!socket_ || ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(socket_.get(), 1) != 0 ||
        ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      rank.harness_error(std::string("cannot listen on loopback: ") + std::strerror(errno));
    }
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }

 private:
  base::Descriptor socket_;
  int port_ = 0;
};

void port_busy(Rank& rank) {
  bool has_port = false;
  for (uint32_t i = 0; i < rank.backend().option_count; ++i) {
    has_port = has_port || std::strcmp(rank.backend().options[i]->key, "port") == 0;
  }
  if (!has_port) rank.skip("the backend has no option named port");
  std::string port;
  {
    const TakenPort taken(rank);
    port = std::to_string(taken.port());
    const Stopwatch watch;
    Outcome outcome;
    const auto agent = rank.try_open(plan_in("busy", {{"port", port}}, kShort), outcome);
    check_in_time(rank, watch, rank.scaled(kShort), "init");
    if (agent != nullptr) {  // it did not use the taken port
      ring(rank, *agent, 1);
    } else {
      rank.check(outcome.status == BP_RESOURCE, "BP_RESOURCE for a port that is taken", outcome.text());
      rank.check(outcome.text().find(port) != std::string::npos, "an error that names the port " + port,
                 outcome.text());
    }
  }
  const auto agent = rank.open(plan_in("free", {{"port", port}}));
  ring(rank, *agent, 2);
}

}  // namespace

std::vector<Case> trouble_cases() {
  const Needs nonsense = {.without = BP_BACKEND_ONE_WORLD | BP_BACKEND_BLOCKING_INIT, .ranks = 2};
  const Needs missing = {.without = BP_BACKEND_BLOCKING_INIT, .ranks = 2};
  return {
      Case("rank-out-of-range", "a rank outside of its world is BP_INVALID", rank_out_of_range,
           {.without = BP_BACKEND_ONE_WORLD}, {.worlds = {1}}),
      Case("duplicate-rank", "two processes with the same rank cause no hang", duplicate_rank, nonsense,
           {.worlds = {3}}),
      Case("size-mismatch", "ranks that disagree about the world size do not hang", size_mismatch, nonsense,
           {.worlds = {3}}),
      Case("missing-rank-named", "an init that waits for a missing rank ends in time and names it", missing_rank_named,
           missing, {.worlds = {2}}),
      Case("missing-first-rank-named", "an init that waits for a missing rank 0 ends in time and names it",
           missing_first_rank_named, missing, {.worlds = {2}}),
      Case("abort-during-init", "an init that waits ends within 500 ms of the host's request", abort_during_init,
           missing, {.worlds = {2}}),
      Case("port-busy", "a port in use is an error that names it, and has no other effect", port_busy, {},
           {.worlds = {1}}),
  };
}

}  // namespace backplane::conformance::init
