// SPDX-License-Identifier: Apache-2.0
//
// Attacks on the ports of the ranks. The job must continue with correct data and release the resources that the attack
// used. Attacks that imitate a genuine opening modify openings captured on loopback of the case's private network.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "groups.hpp"
#include "hostile_attack.hpp"
#include "hostile_secret.hpp"

namespace backplane::conformance {

namespace {

// Leaves the body if no genuine opening was captured.
void need_genuine(Attack& attack) {
  for (const Listener& target : attack.targets()) {
    if (!attack.genuine(target).empty()) return;
  }
  attack.rank().publish("attack/over", "0");
  attack.rank().skip("how the ranks greet each other cannot be captured here");
}

// Calls `attempt` with each genuine opening of each port, repeatedly, until it returns false for all of them or the
// time is over. `turn` counts up from 0.
void vary(Attack& attack, bool (*attempt)(Attack&, const Listener&, const Opening& opening, size_t turn)) {
  need_genuine(attack);
  bool more = true;
  for (size_t turn = 0; more && !attack.time_is_over(); ++turn) {
    more = false;
    for (const Listener& target : attack.targets()) {
      for (const Opening& opening : attack.genuine(target)) more = attempt(attack, target, opening, turn) || more;
    }
  }
}

void connect_and_close(Attack& attack) {
  for (int turn = 0; turn < 60; ++turn) {
    for (const Listener& target : attack.targets()) {
      AttackConnection connection(target);
      if (turn % 3 == 1) connection.reset();
      if (turn % 3 == 2) connection.await_reaction();
      if (attack.time_is_over()) return;
    }
  }
}

void one_byte(Attack& attack) {
  for (int value = 0; value < 256 && !attack.time_is_over(); value += 15) {
    for (const Listener& target : attack.targets()) attack.send_to(target, std::string(1, static_cast<char>(value)));
  }
}

void http_request(Attack& attack) {
  for (const char* request :
       {"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n",
        "POST /api HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n{}", "SSH-2.0-OpenSSH_9.2p1\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "PING\r\n"}) {
    for (const Listener& target : attack.targets()) attack.send_to(target, request);
  }
}

void random_bytes(Attack& attack) {
  for (size_t size = 1; size < 300'000 && !attack.time_is_over(); size = size * 2 + 3) {
    for (const Listener& target : attack.targets()) attack.send_to(target, attack.noise(size));
  }
}

// Replays a genuine opening with one byte changed.
bool change_byte(Attack& attack, const Listener& target, Opening opening, size_t at) {
  if (at >= opening.bytes.size()) return false;
  opening.bytes[at] = static_cast<char>(~opening.bytes[at]);
  attack.send_to(target, opening);
  return true;
}

void wrong_magic(Attack& attack) {
  vary(attack, [](Attack& of, const Listener& target, const Opening& opening, size_t turn) {
    return turn < 8 && change_byte(of, target, opening, turn);
  });
}

void wrong_key(Attack& attack) {
  vary(attack, [](Attack& of, const Listener& target, const Opening& opening, size_t turn) {
    return change_byte(of, target, opening, 8 + turn);
  });
}

// Replays a genuine opening with one aligned word replaced, small words first.
bool change_word(Attack& attack, const Listener& target, Opening opening, size_t turn, uint64_t value) {
  const size_t width = turn % 2 == 0 ? 4 : 8;
  const size_t at = turn / 2 * 4;
  if (at + width > opening.bytes.size()) return false;
  if (width == 4) value >>= 32;
  std::memcpy(opening.bytes.data() + at, &value, width);
  attack.send_to(target, opening);
  return true;
}

void huge_length(Attack& attack) {
  vary(attack, [](Attack& of, const Listener& target, const Opening& opening, size_t turn) {
    return change_word(of, target, opening, turn, UINT64_C(0x7fffffffffffffff));
  });
}

void negative_count(Attack& attack) {
  vary(attack, [](Attack& of, const Listener& target, const Opening& opening, size_t turn) {
    return change_word(of, target, opening, turn, UINT64_C(0xffffffffffffffff));
  });
}

// Replaces each small number of a genuine opening, which may be the rank, by each other rank in turn.
void rank_spoofed(Attack& attack) {
  vary(attack, [](Attack& of, const Listener& target, const Opening& opening, size_t turn) {
    const auto ranks = static_cast<size_t>(of.rank().size());
    const size_t at = turn / (ranks + 2) * 4;
    const auto value = static_cast<uint32_t>(turn % (ranks + 2)) - 1;  // includes -1 and the world size
    if (at + 4 > opening.bytes.size()) return false;
    uint32_t genuine = 0;
    std::memcpy(&genuine, opening.bytes.data() + at, sizeof genuine);
    if (genuine >= ranks || genuine == value) return true;
    Opening spoofed = opening;
    std::memcpy(spoofed.bytes.data() + at, &value, sizeof value);
    of.send_to(target, spoofed);
    return true;
  });
}

void replay(Attack& attack) {
  vary(attack, [](Attack& of, const Listener& target, const Opening& opening, size_t turn) {
    // The whole opening, and prefixes as long as a greeting may be.
    constexpr std::array<size_t, 6> kSizes = {2048, 32, 64, 128, 256, 512};
    of.send_to(target, opening, kSizes[turn % kSizes.size()]);
    return turn < 2 * kSizes.size();
  });
}

// Many connections that never complete their opening.
void slow_loris(Attack& attack) {
  constexpr int kPause = 100;  // milliseconds between two bytes: twenty in all
  attack.double_duration();
  std::vector<std::pair<AttackConnection, std::string>> held;
  for (const Listener& target : attack.targets()) {
    for (int i = 0; i < 40; ++i) {
      const std::vector<Opening>& genuine = attack.genuine(target);
      held.emplace_back(AttackConnection(target),
                        genuine.empty() || i % 2 == 0 ? attack.noise(2000) : genuine.front().bytes);
    }
  }
  for (size_t at = 0; !attack.time_is_over(); ++at) {
    for (auto& [connection, words] : held) {
      if (at < words.size()) connection.send({words.data() + at, 1});
    }
    poll(nullptr, 0, kPause);
  }
}

void half_frame(Attack& attack) {
  for (const Listener& target : attack.targets()) {
    std::vector<Opening> openings = attack.genuine(target);
    if (openings.empty()) openings.push_back({attack.noise(200), {200}});
    for (const Opening& opening : openings) {
      for (size_t size = 1; size < opening.bytes.size() && !attack.time_is_over(); size += 1 + size / 4) {
        AttackConnection connection(target);
        connection.send(std::string_view(opening.bytes).substr(0, size));
        if (size % 2 == 0) connection.await_reaction();
        if (size % 3 == 0) connection.reset();
      }
    }
  }
}

void flood(Attack& attack) {
  for (int wave = 0; wave < 3 && !attack.time_is_over(); ++wave) {
    std::vector<AttackConnection> connections;
    for (int i = 0; i < 250; ++i) {
      for (const Listener& target : attack.targets()) {
        connections.emplace_back(target);
        if (wave == 1) connections.back().send("x");
        if (attack.time_is_over()) return;
      }
    }
    if (wave == 2) {
      for (AttackConnection& connection : connections) connection.reset();
    }
  }
}

// Sends a genuine opening and never reads.
void slow_reader(Attack& attack) {
  constexpr int kSmallest = 2048;
  attack.double_duration();
  std::vector<AttackConnection> readers;
  for (const Listener& target : attack.targets()) {
    std::vector<Opening> openings = attack.genuine(target);
    if (openings.empty()) openings.push_back({attack.noise(200), {200}});
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back(target, kSmallest);
      readers.back().send(openings.front().bytes);
    }
  }
  while (!attack.time_is_over()) {
    for (AttackConnection& reader : readers) reader.send(attack.noise(10'000));
    poll(nullptr, 0, 5);
  }
}

template <void (*attack)(Attack&)>
void attack_with(Rank& rank) {
  run_attack(rank, attack);
}

}  // namespace

std::vector<Case> hostile_cases() {
  const Needs two = {.ranks = 2};
  const Execution execution = {.deadline = 40 * kSecond, .extra_processes = 1, .own_network = true};
  const Needs two_jobs = {.flags = BP_BACKEND_AUTHENTICATES,
                          .without = BP_BACKEND_ONE_WORLD | BP_BACKEND_BLOCKING_INIT,
                          .ranks = 2,
                          .processes = true};
  Execution meeting = execution;
  meeting.worlds = {kMeetingRanks};
  return {
      Case("connect-and-close", "connections that close at once do not disturb the job", attack_with<connect_and_close>,
           two, execution),
      Case("one-byte", "connections that send one byte do not disturb the job", attack_with<one_byte>, two, execution),
      Case("http-request", "connections that speak another protocol do not disturb the job", attack_with<http_request>,
           two, execution),
      Case("random-bytes", "connections that send random bytes do not disturb the job", attack_with<random_bytes>, two,
           execution),
      Case("wrong-magic", "an opening with a wrong magic number is refused", attack_with<wrong_magic>, two, execution),
      Case("wrong-key", "an opening with one wrong byte is refused", attack_with<wrong_key>, two, execution),
      Case("huge-length", "impossible sizes in an opening cost no memory", attack_with<huge_length>, two, execution),
      Case("negative-count", "negative numbers in an opening cost no memory", attack_with<negative_count>, two,
           execution),
      Case("rank-spoofed", "a rank's number alone does not authenticate a connection", attack_with<rank_spoofed>, two,
           execution),
      Case("replay", "a replayed opening is refused", attack_with<replay>, two, execution),
      Case("slow-loris", "connections that never complete their opening do not delay the job", attack_with<slow_loris>,
           two, execution),
      Case("half-frame", "connections that close amid their opening do not disturb the job", attack_with<half_frame>,
           two, execution),
      Case("flood", "a flood of connections leaks nothing", attack_with<flood>, two, execution),
      Case("slow-reader", "connections that never read do not delay the job", attack_with<slow_reader>, two, execution),
      Case(
          "other-secret", "a rank of a job with another secret is refused",
          [](Rank& rank) { run_with_other_job(rank, true, true); }, two_jobs, meeting),
      Case(
          "no-secret", "a job with a secret refuses ranks of a job without one",
          [](Rank& rank) { run_with_other_job(rank, true, false); }, two_jobs, meeting),
      Case(
          "impostor", "a rank of a job with a secret refuses a peer of a job without one",
          [](Rank& rank) { run_with_other_job(rank, false, true); }, two_jobs, meeting),
      Case("early-outsider", "a starting rank of a job with a secret accepts only its peers", run_with_other_job_early,
           two_jobs, meeting),
  };
}

}  // namespace backplane::conformance
