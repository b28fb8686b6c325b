// SPDX-License-Identifier: Apache-2.0
//
// Attacks on the ranks' ports by a process that is no rank.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "proc.hpp"
#include "rank.hpp"
#include "sniffer.hpp"

namespace backplane::conformance {

// A connection of the attacker. No call blocks for long, whatever the other side does.
class AttackConnection {
 public:
  explicit AttackConnection(const Listener& target, int receive_buffer = 0);
  // An accepted connection; owns the socket.
  explicit AttackConnection(base::Descriptor socket) : socket_(std::move(socket)) {}

  bool connected() const { return static_cast<bool>(socket_); }
  int socket() const { return socket_.get(); }  // -1: not connected
  // Sends what the other side takes within a moment; false once it has closed.
  bool send(std::string_view bytes);
  // Waits a moment for an answer or the end, and reads nothing.
  void await_reaction(int milliseconds = 20);
  // Reads and drops what is there.
  void drain();
  // Closes with a reset instead of an orderly end.
  void reset();

 private:
  base::Descriptor socket_;
};

// The attacker's tools. It runs in the extra process while the ranks exchange verified messages.
class Attack {
 public:
  Attack(Rank& rank, std::vector<Listener> targets, std::unique_ptr<Sniffer> sniffer);

  Rank& rank() { return rank_; }
  const std::vector<Listener>& targets() const { return targets_; }
  std::string noise(size_t bytes);
  // The openings of all genuine connections to this target so far; leaves the body if the capture failed.
  const std::vector<Opening>& genuine(const Listener& target);
  // Connects, says it, and waits for a reaction. Closes the connection some attempts later.
  void say_to(const Listener& target, std::string_view bytes);
  // Replays a captured opening packet by packet, up to `most` bytes: some protocols expect a reply in between.
  void say_to(const Listener& target, const Opening& opening, size_t most = SIZE_MAX);
  // Keeps the last connections for a moment longer, then closes them.
  void linger();
  // An attack has about a second; twice as much if its effect depends on its duration.
  void take_time();
  bool time_is_over() const { return now() > end_; }

 private:
  Rank& rank_;
  const std::vector<Listener> targets_;
  const std::unique_ptr<Sniffer> sniffer_;
  Nanoseconds end_;
  std::map<Listener, std::vector<Opening>> heard_;
  std::deque<AttackConnection> held_;
};

// Rounds of verified messages among the ranks of `agent`, under the tags from 0 to 99, until "attack/over" has been
// told. All of them end after the same round: rank 0 sees the end and names one that nobody can have reached, for each
// needs the messages of the others. No round may take long.
void exchange_until_over(Rank& rank, Agent& agent);

// The whole of a hostile case, on ranks and on the extra process alike.
void run_attack(Rank& rank, void (*body)(Attack& attack));

}  // namespace backplane::conformance
