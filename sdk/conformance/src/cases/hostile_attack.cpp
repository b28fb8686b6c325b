// SPDX-License-Identifier: Apache-2.0
#include "hostile_attack.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "process_traffic.hpp"

namespace backplane::conformance {
namespace {

constexpr size_t kOpenConnections = 24;  // connections that stay open after their data was sent
constexpr int kPause = 5;                // milliseconds between two packets, if nothing is answered
constexpr int kMoment = 20;              // milliseconds
constexpr Nanoseconds kAttack = kSecond;
constexpr Nanoseconds kStandstill = 7 * kSecond / 5;  // shorter than the longest attack
constexpr uint64_t kMemory = 64 << 20;                // bytes that an attack may cost a rank
constexpr size_t kMoreThreads = 12;                   // fewer than the connections of any attack
constexpr uint64_t kMostRounds = 1'000'000;

bool wait_for(int socket, short events, int milliseconds = kMoment) {
  pollfd polled = {socket, events, 0};
  return poll(&polled, 1, milliseconds) > 0;
}

// Connects a socket of `type` to the target.
base::Descriptor connect_to(const Listener& target, int type, int receive_buffer) {
  base::Descriptor made(socket(target.family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return made;
  if (receive_buffer > 0) setsockopt(made.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  const auto* address = reinterpret_cast<const sockaddr*>(target.address.data());
  int error = connect(made.get(), address, static_cast<socklen_t>(target.address.size())) == 0 ? 0 : errno;
  if (error == EINPROGRESS && wait_for(made.get(), POLLOUT)) {
    socklen_t size = sizeof error;
    getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return made;
  errno = error;
  return {};
}

}  // namespace

AttackConnection::AttackConnection(const Listener& target, int receive_buffer)
    : socket_(connect_to(target, SOCK_STREAM, receive_buffer)) {
  if (!socket_ && errno == EPROTOTYPE) socket_ = connect_to(target, SOCK_SEQPACKET, receive_buffer);
}
bool AttackConnection::send(std::string_view bytes) {
  while (!bytes.empty() && connected()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN || !wait_for(socket_.get(), POLLOUT)) {
      return errno == EAGAIN;
    }
  }
  return connected();
}

void AttackConnection::await_reaction(int milliseconds) {
  if (connected()) wait_for(socket_.get(), POLLIN, milliseconds);
}

void AttackConnection::drain() {
  char bytes[4096];
  while (connected() && recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
  }
}

void AttackConnection::reset() {
  const linger at_once = {1, 0};
  if (connected()) setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  socket_.reset();
}

Attack::Attack(Rank& rank, std::vector<Listener> targets, std::unique_ptr<Sniffer> sniffer)
    : rank_(rank), targets_(std::move(targets)), sniffer_(std::move(sniffer)), end_(now() + rank.scaled(kAttack)) {}

std::string Attack::noise(size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(rank_.random()());
  return text;
}

const std::vector<Opening>& Attack::genuine(const Listener& target) {
  std::vector<Opening>& heard = openings_[target];
  if (heard.empty() && sniffer_ != nullptr && target.port() != 0) heard = sniffer_->openings(target.port());
  return heard;
}

void Attack::send_to(const Listener& target, std::string_view bytes) {
  held_.emplace_back(target);
  held_.back().send(bytes);
  held_.back().await_reaction();
  held_.back().drain();
  if (held_.size() > kOpenConnections) held_.pop_front();
}

void Attack::send_to(const Listener& target, const Opening& opening, size_t most) {
  held_.emplace_back(target);
  size_t begin = 0;
  for (const size_t packet : opening.ends) {
    const size_t end = std::min(packet, most);
    if (begin > 0) held_.back().await_reaction(kPause);
    held_.back().drain();
    if (!held_.back().send(std::string_view(opening.bytes).substr(begin, end - begin))) break;
    begin = end;
    if (end == most) break;
  }
  if (held_.size() > kOpenConnections) held_.pop_front();
}

void Attack::double_duration() { end_ += rank_.scaled(kAttack); }

void Attack::linger() {
  for (int turn = 0; turn < 10 && !held_.empty(); ++turn) {
    for (AttackConnection& connection : held_) connection.drain();
    poll(nullptr, 0, kMoment);
  }
  held_.clear();
}

void exchange_until_over(Rank& rank, Agent& agent) {
  rank.step("exchanging messages during an attack");
  uint64_t last = kMostRounds;
  Nanoseconds longest = 0;
  for (uint64_t round = 0; round < last; ++round) {
    if (rank.id() == 0 && last == kMostRounds && rank.world().look("harness/attack/over")) {
      last = round + 3;
      rank.publish("attack/last", std::to_string(last));
    }
    const Stopwatch watch;
    exchange(rank, agent, round % 100, 1 + round * 7919 % 40'000);
    longest = std::max(longest, watch.took());
    const std::optional<std::string> said = rank.world().look("harness/attack/last");
    if (said) last = std::strtoull(said->c_str(), nullptr, 10);
  }
  rank.check_time(longest, rank.scaled(kStandstill), "the job progresses during the attack: each exchange ends");
}

namespace {

// Ends the case on all ranks, because there is nothing to attack.
void end_without_attack(Rank& rank, const std::string& reason) {
  rank.publish("attack/over", "0");
  rank.skip(reason);
}

void attack_from_outside(Rank& rank, void (*body)(Attack& attack)) {
  std::string why_not;
  std::unique_ptr<Sniffer> sniffer = Sniffer::make(why_not);
  rank.publish("attack/ears", "open");
  rank.step("listening to how the ranks greet each other");
  for (int32_t other = 0; other < rank.size(); ++other) {
    const std::string key = fmt::format("harness/attack/warm/{}", other);
    const Nanoseconds deadline = now() + rank.hang_limit(20 * kSecond);
    while (!rank.world().look(key)) {
      if (now() > deadline) return;  // the ranks report the failure
      if (sniffer != nullptr) sniffer->listen(5);
      if (sniffer == nullptr) poll(nullptr, 0, 5);
    }
  }
  if (sniffer != nullptr) sniffer->listen(0);
  const std::set<Listener> found = listeners();
  if (found.empty()) end_without_attack(rank, "this backend accepts no connections once its group has started");
  Attack attack(rank, {found.begin(), found.end()}, std::move(sniffer));
  rank.step(fmt::format("attacking {} ports", found.size()));
  body(attack);
  attack.linger();
  rank.publish("attack/over", std::to_string(now()));
}

void defend(Rank& rank) {
  rank.await_value("attack/ears");
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  exchange(rank, *agent, 1, 300'000);
  const Footprint before = Footprint::take();
  const uint64_t memory = resident_bytes();
  rank.barrier();
  rank.publish(fmt::format("attack/warm/{}", rank.id()), "");
  exchange_until_over(rank, *agent);
  rank.step("comparing resources after the attack");
  const uint64_t after = resident_bytes();
  rank.check(has_sanitizer() || after < memory + kMemory, "unauthenticated connections cost a rank less than 64 MiB",
             fmt::format("resident memory grew by {} MiB", (after - std::min(memory, after)) >> 20));
  Footprint only_descriptors = before;
  only_descriptors.shared = shared_memory();
  only_descriptors.running = threads();  // a core may keep those that it has started for calls
  const std::string left = left_behind(only_descriptors, rank.scaled(8 * kSecond));
  rank.check(left.empty(), "connections that the attacker closes are closed", left);
  rank.check(threads().size() < before.running.size() + kMoreThreads, "no thread for each connection is left",
             fmt::format("there were {} threads, now {}", before.running.size(), threads().size()));
  rank.step("exchanging messages after an attack");
  exchange(rank, *agent, 1, 300'000);
  rank.barrier();
  agent->close();
  exchange_in_new_group(rank);
}

}  // namespace

void run_attack(Rank& rank, void (*body)(Attack& attack)) {
  if (rank.is_extra()) {
    attack_from_outside(rank, body);
  } else {
    defend(rank);
  }
}

}  // namespace backplane::conformance
