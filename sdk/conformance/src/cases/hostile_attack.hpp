// SPDX-License-Identifier: Apache-2.0
//
// Attacks on the ranks' ports by a process that is not a rank.
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

// A connection of the attacker. No call blocks for long.
class AttackConnection {
 public:
  explicit AttackConnection(const Listener& target, int receive_buffer = 0);
  // An accepted connection; owns the socket.
  explicit AttackConnection(base::Descriptor socket) : socket_(std::move(socket)) {}

  bool connected() const { return static_cast<bool>(socket_); }
  int socket() const { return socket_.get(); }  // -1: not connected
  // Sends as much as the other side accepts within a short time. False once it has closed.
  bool send(std::string_view bytes);
  // Waits briefly for a reply or the end of the connection. Reads nothing.
  void await_reaction(int milliseconds = 20);
  // Reads and discards all available bytes.
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
  // Connects, sends the bytes and waits for a reaction. Closes the connection some attempts later.
  void send_to(const Listener& target, std::string_view bytes);
  // Replays a captured opening packet by packet, up to `most` bytes: some protocols expect a reply in between.
  void send_to(const Listener& target, const Opening& opening, size_t most = SIZE_MAX);
  // Keeps the latest connections open for a short time, then closes them.
  void linger();
  // Doubles the duration of the attack, which is about a second, because its effect depends on the duration.
  void double_duration();
  bool time_is_over() const { return now() > end_; }

 private:
  Rank& rank_;
  const std::vector<Listener> targets_;
  const std::unique_ptr<Sniffer> sniffer_;
  Nanoseconds end_;
  std::map<Listener, std::vector<Opening>> openings_;
  std::deque<AttackConnection> held_;
};

// Rounds of verified messages among the ranks of `agent`, under the tags from 0 to 99, until "attack/over" has been
// published. All ranks end after the same round: rank 0 chooses one that no rank can have reached, because each round
// needs the messages of all ranks. No round may take long.
void exchange_until_over(Rank& rank, Agent& agent);

// Runs a hostile case, on ranks and on the extra process.
void run_attack(Rank& rank, void (*body)(Attack& attack));

}  // namespace backplane::conformance
