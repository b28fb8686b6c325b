// SPDX-License-Identifier: Apache-2.0
//
// Messages of a rank that has left in an orderly way, at receivers that are late.
#include <array>
#include <cstdlib>
#include <fstream>

#include "async_support.hpp"
#include "death_after.hpp"
#include "endings.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kLastTag = 2;
constexpr size_t kLastBytes = 1000;
constexpr Nanoseconds kStandstillOfReceiver = kSecond / 2;  // not scaled: less than a backend lingers

std::vector<char> last_message(int32_t from, int32_t to, uint64_t number) {
  return payload(from, to, 100 + number, kLastBytes);
}

bool is_stopped(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  const size_t name_ends = line.rfind(')');
  return name_ends != std::string::npos && line.compare(name_ends, 3, ") T") == 0;
}

// Sends until a send is not done by itself, because it waits for its recv. Returns how many were done.
uint64_t send_last_messages(Rank& rank, Agent& agent, int32_t peer) {
  constexpr uint64_t kMost = 60;
  for (uint64_t number = 0; number < kMost; ++number) {
    const std::vector<char> data = last_message(rank.id(), peer, number);
    Pending send = agent.isend(peer, kLastTag, data.data(), data.size());
    if (!send.finish(rank.scaled(kSecond / 5)).ok()) return number;
  }
  return kMost;
}

// The leaver destroys its group while rank 0 is stopped and no rank has posted a recv. They are posted after its
// process has ended.
void leave_before_recv(Rank& rank) {
  const int32_t leaver = rank.size() - 1;
  Deaths deaths(rank, {leaver});
  auto agent = rank.open();
  exchange(rank, *agent, 1, 1000);
  rank.barrier();
  if (deaths.doomed()) {
    const bool stopped = poll_until(rank.scaled(5 * kSecond), [&rank] { return is_stopped(rank.world().pid(0)); });
    rank.step("sending messages that nobody waits for");
    uint64_t sent = 0;
    for (const int32_t peer : deaths.survivors()) {
      const uint64_t done = send_last_messages(rank, *agent, peer);
      sent += done;
      rank.publish(fmt::format("done/{}", peer), std::to_string(done));
    }
    rank.publish("why not", !stopped    ? "rank 0 was not stopped in time"
                            : sent == 0 ? "no send is done before its recv"
                                        : "");
    close_quickly(rank, std::move(agent));
    depart(rank);
  }
  if (rank.id() == 0) freeze(rank, kStandstillOfReceiver);
  deaths.await_loss();
  const uint64_t done = std::strtoull(rank.await_value(fmt::format("done/{}", rank.id())).c_str(), nullptr, 10);
  for (uint64_t number = 0; number < done; ++number) {
    rank.step(fmt::format("receiving message {} of {} of a rank whose process has ended", number + 1, done));
    std::vector<char> data(kLastBytes);
    rank.require_ok(agent->recv(leaver, kLastTag, data.data(), data.size()),
                    "a recv of a message whose send was done before the sender's destroy");
    rank.require(data == last_message(leaver, rank.id(), number), "the bytes that were sent, in order", "others");
  }
  deaths.barrier("received");
  close_quickly(rank, std::move(agent));
  if (const std::string why_not = rank.await_value("why not"); !why_not.empty()) rank.skip(why_not);
}

}  // namespace

std::vector<Case> death_leave_cases() {
  return {Case("messages-outlive",
               "messages arrive although their receiver is stopped, and late, when the sender leaves and ends",
               leave_before_recv, {.ranks = 2, .processes = true})};
}

}  // namespace backplane::conformance
