// SPDX-License-Identifier: Apache-2.0
//
// A plugin does not get the secret. Its group's data comes from the store, which only ranks of the job can use
// (abi/ext/security.h), so jobs with different secrets have different stores. To redirect a rank of another job, one of
// its peers publishes its address in their store and is killed. A relay then listens at that address and forwards to a
// rank of this job. Each of the two peers is replaced in turn, since a backend may connect to lower or to higher ranks.
#include "hostile_secret.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "death_after.hpp"
#include "endings.hpp"
#include "hostile_attack.hpp"
#include "process_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr int32_t kJob = 2;  // ranks of each job
constexpr int32_t kCaller = 2;
constexpr int32_t kFirstPeer = 3;
constexpr Nanoseconds kCallTime = kSecond;                // for the caller's init
constexpr Nanoseconds kWaitTime = 3 * kSecond;            // for the init of a rank that the caller connects to
constexpr Nanoseconds kTalkTime = 700 * kMillisecond;     // for all of its operations
constexpr Nanoseconds kPublishTime = 300 * kMillisecond;  // for a listening rank to publish its address
constexpr Nanoseconds kListenTime = 10 * kSecond;         // until a rank listens, or has released its port
constexpr uint64_t kTags = 10;

// Listens at the address of a killed process and forwards connections to `behind`.
class Relay {
 public:
  explicit Relay(Listener behind) : behind_(std::move(behind)) {}

  // False: the address is still in use.
  bool listen(const Listener& place) {
    base::Descriptor made(::socket(place.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (place.family == AF_UNIX) remove_name(place);
    const auto* address = reinterpret_cast<const sockaddr*>(place.address.data());
    if (::bind(made.get(), address, static_cast<socklen_t>(place.address.size())) != 0) return false;
    if (::listen(made.get(), 16) != 0) return false;
    listener_ = std::move(made);
    return true;
  }

  // Accepts connections and forwards data; waits briefly if there is none.
  void turn() {
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
    for (const Line& line : lines_) {
      polled.push_back({line.first.socket(), POLLIN, 0});
      polled.push_back({line.second.socket(), POLLIN, 0});
    }
    ::poll(polled.data(), polled.size(), 10);
    for (size_t i = 0; i < lines_.size(); ++i) {
      bool open = true;
      if (polled[1 + 2 * i].revents != 0) open = pass(lines_[i].first, lines_[i].second);
      if (open && polled[2 + 2 * i].revents != 0) open = pass(lines_[i].second, lines_[i].first);
      if (!open) lines_[i] = {AttackConnection(base::Descriptor()), AttackConnection(base::Descriptor())};
    }
    std::erase_if(lines_, [](const Line& line) { return !line.first.connected(); });
    base::Descriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    lines_.emplace_back(AttackConnection(std::move(fd)), AttackConnection(behind_));
    ++calls_;
  }

  int calls() const { return calls_; }

 private:
  using Line = std::pair<AttackConnection, AttackConnection>;

  static void remove_name(const Listener& place) {
    if (place.address.size() <= offsetof(sockaddr_un, sun_path)) return;
    const std::string name = place.address.substr(offsetof(sockaddr_un, sun_path));
    if (name.front() != '\0') ::unlink(name.c_str());
  }

  // False: one of the two has ended.
  static bool pass(AttackConnection& from, AttackConnection& to) {
    std::array<char, 65536> bytes;
    const ssize_t size = ::recv(from.socket(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    return size > 0 && to.send({bytes.data(), static_cast<size_t>(size)});
  }

  const Listener behind_;
  base::Descriptor listener_;
  std::vector<Line> lines_;
  int calls_ = 0;
};

Listener listener_at(const std::string& address) {
  sockaddr any = {};
  std::memcpy(&any, address.data(), std::min(sizeof any, address.size()));
  return {any.sa_family, address};
}

// The address that this process listens on, as text; empty: none.
std::string listening_address() {
  const std::set<Listener> listeners = own_listeners();
  return listeners.empty() ? "" : listeners.begin()->address;
}

void await_listening(const Rank& rank) {
  const Nanoseconds deadline = now() + rank.hang_limit(kListenTime);
  while (listening_address().empty() && now() < deadline) poll(nullptr, 0, 5);
}

Plan plan_of(const std::string& space, int32_t rank, bool secure, std::optional<Nanoseconds> timeout = {}) {
  Plan plan;
  plan.timeout = timeout;
  plan.space = space;
  plan.rank = rank;
  plan.world_size = kJob;
  plan.secure = secure;
  return plan;
}

// The store of the other job: a new one for each turn.
std::string their_space(int32_t turn) { return fmt::format("theirs/{}", turn); }

std::unique_ptr<Agent> open(Rank& rank, const Plan& plan) {
  Outcome outcome;
  std::unique_ptr<Agent> agent = rank.try_open(plan, outcome);
  if (plan.secure == true && outcome.status == BP_UNSUPPORTED) {
    rank.skip("it cannot authenticate peers here: " + outcome.text());
  }
  rank.require_ok(outcome, "init");
  return agent;
}

void serve_own_job(Rank& rank, bool secure) {
  const auto agent = open(rank, plan_of("ours", rank.id(), secure));
  exchange(rank, *agent, 1, 1000);
  rank.publish(fmt::format("door/{}", rank.id()), listening_address());
  exchange_until_over(rank, *agent);
  agent->close();
}

// Publishes its address and is killed: inside init, if the backend's init waits for the other ranks.
void be_replaced(Rank& rank, int32_t turn, bool secure) {
  if (turn > 0) rank.await_value(fmt::format("over/{}", turn - 1));
  if (rank.await_value(fmt::format("door/{}", turn)).empty()) return;
  const std::jthread end([&rank, turn] {
    await_listening(rank);
    poll(nullptr, 0, static_cast<int>(rank.scaled(kPublishTime) / kMillisecond));
    rank.publish(fmt::format("place/{}", turn), listening_address());
    die(rank, SIGKILL);
  });
  const auto agent = open(rank, plan_of(their_space(turn), turn, secure));
  for (;;) pause();
}

void exchange_once(Rank& rank, Agent& agent, int32_t peer) {
  rank.step("talking to a rank of another job");
  constexpr size_t kRoom = 40'000;  // for messages between ranks of this job
  std::vector<std::vector<char>> inbound(kTags, std::vector<char>(kRoom));
  const std::vector<char> word(100, 'x');
  std::vector<Pending> receives;
  std::vector<Pending> sends;
  for (uint64_t tag = 0; tag < kTags; ++tag) {
    receives.push_back(agent.irecv(peer, tag, inbound[tag].data(), kRoom));
    sends.push_back(agent.isend(peer, tag, word.data(), word.size()));
  }
  const Nanoseconds deadline = now() + rank.scaled(kTalkTime);
  size_t taken = 0;
  for (Pending& receive : receives) {
    const Outcome outcome = receive.finish(std::max<Nanoseconds>(0, deadline - now()));
    taken += outcome.ok() ? 1 : 0;
    rank.check(outcome.status != BP_AGAIN, "a recv from a rank of another job ends when it is cancelled",
               "it did not within 5 s");
  }
  rank.check(taken == 0, "nothing comes from a rank of another job",
             fmt::format("{} of {} receives took its messages", taken, kTags));
  for (Pending& send : sends) {  // it may have succeeded: a buffered send does before anything goes out
    rank.check(send.finish(0).status != BP_AGAIN, "a send to a rank of another job ends when it is cancelled",
               "it did not within 5 s");
  }
}

// Starts a rank whose peer's address leads to a rank of another job.
void start_among_outsiders(Rank& rank, const Plan& plan) {
  const Stopwatch watch;
  Outcome outcome;
  std::unique_ptr<Agent> agent = rank.try_open(plan, outcome);
  rank.check_time(watch.took(), rank.scaled(*plan.timeout + kSecond),
                  "init whose peers do not authenticate ends at its timeout");
  if (agent == nullptr) return;
  exchange_once(rank, *agent, 1 - plan.rank);
  close_quickly(rank, std::move(agent));
}

void call(Rank& rank, int32_t turn, bool secure) {
  if (!rank.await_value(fmt::format("relay/{}", turn)).empty()) {
    start_among_outsiders(rank, plan_of(their_space(turn), 1 - turn, secure, kCallTime));
  }
  rank.publish(fmt::format("over/{}", turn), "");
}

// Starts with a peer that never comes.
void wait_for_absent_peer(Rank& rank, bool secure) {
  const int32_t turn = rank.id();
  if (turn > 0) rank.await_value(fmt::format("over/{}", turn - 1));
  const std::jthread door([&rank, turn] {
    await_listening(rank);
    rank.publish(fmt::format("door/{}", turn), listening_address());
  });
  start_among_outsiders(rank, plan_of(fmt::format("early/{}", turn), turn, secure, kWaitTime));
}

// Returns the number of connections that were forwarded in this turn.
int redirect_caller(Rank& rank, int32_t turn) {
  const std::string door = rank.await_value(fmt::format("door/{}", turn));
  const std::string place = door.empty() ? "" : rank.await_value(fmt::format("place/{}", turn));
  Relay relay(listener_at(door));
  if (!place.empty()) {
    rank.step("taking the place of a rank that was killed");
    const Nanoseconds deadline = now() + rank.hang_limit(kListenTime);
    while (!relay.listen(listener_at(place))) {
      if (now() > deadline)
        rank.harness_error("cannot listen at " + listener_at(place).text() + ", where a killed rank did");
      poll(nullptr, 0, 5);
    }
  }
  rank.publish(fmt::format("relay/{}", turn), place.empty() ? "" : "there");
  rank.step("leading a rank of another job to this one");
  const Nanoseconds deadline = now() + rank.hang_limit(kListenTime);
  while (!rank.world().look(fmt::format("harness/over/{}", turn)) && now() < deadline) relay.turn();
  return relay.calls();
}

void run_two_jobs(Rank& rank, bool ours, bool theirs, void (*live)(Rank& rank, bool secure)) {
  if (rank.is_extra()) {
    int calls = 0;
    for (int32_t turn = 0; turn < kJob; ++turn) calls += redirect_caller(rank, turn);
    rank.publish("attack/over", "");
    if (calls == 0) rank.skip("no rank can be redirected: none listens before its peers arrive, or none connects");
  } else if (rank.id() < kJob) {
    live(rank, ours);
  } else if (rank.id() == kCaller) {
    for (int32_t turn = 0; turn < kJob; ++turn) call(rank, turn, theirs);
  } else {
    be_replaced(rank, rank.id() - kFirstPeer, theirs);
  }
}

}  // namespace

void run_with_other_job(Rank& rank, bool ours, bool theirs) { run_two_jobs(rank, ours, theirs, serve_own_job); }
void run_with_other_job_early(Rank& rank) { run_two_jobs(rank, true, true, wait_for_absent_peer); }

}  // namespace backplane::conformance
