// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

#include "p2p.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {
namespace {

// Joins, also when the body is left.
class Thread {
 public:
  template <typename Function>
  explicit Thread(Function function) : thread_(std::move(function)) {}
  ~Thread() { join(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

// Thousands of unexpected messages: a send may wait for its recv, but buffered messages must not cost much more than
// their size, and all arrive in order.
void flood_unexpected(Rank& rank) {
  Talk talk(rank);
  constexpr uint64_t kMessages = 4000;
  constexpr uint64_t kSize = 700;
  const uint64_t senders = rank.backend().flags & BP_BACKEND_ONE_PROCESS ? static_cast<uint64_t>(rank.size()) : 1;
  const uint64_t bound = senders * (6 * kMessages * kSize + kMessages * 2048) + 24 * kMiB;
  std::vector<std::byte> outputs(kMessages * kSize);
  for (uint64_t i = 0; i < kMessages; ++i) {
    fill_pattern(&outputs[i * kSize], kSize, message_name(rank.id(), rank.next(), 1, i));
  }
  std::vector<Pending> sends;
  sends.reserve(kMessages);
  rank.barrier();
  const uint64_t before = resident_bytes();
  rank.step(say("sending ", kMessages, " messages before any recv"));
  for (uint64_t i = 0; i < kMessages; ++i) sends.push_back(talk.send(rank.next(), 1, &outputs[i * kSize], kSize));
  rank.barrier();
  rank.step(say("receiving ", kMessages, " messages that came early"));
  Guarded input(kSize);
  for (uint64_t i = 0; i < kMessages; ++i) {
    bp_result result = make_result();
    Pending receiving = talk.recv(rank.previous(), 1, input.data(), kSize, &result);
    talk.finish(receiving, say("a recv of message ", i));
    talk.expect_report("the recv", result, rank.previous(), kSize);
    talk.expect(say("message ", i, " of ", kMessages), input.data(), kSize,
                message_name(rank.previous(), rank.id(), 1, i));
  }
  const uint64_t after = resident_bytes();
  talk.finish_all(sends, "send");
  if (has_sanitizer() || before == 0) return;
  rank.require(after < before + bound,
               say("at most ", bound >> 20, " MiB for ", senders * kMessages, " messages of ", kSize, " bytes"),
               say((after - before) >> 20, " MiB"));
}

// The message is on its way, or its sender waits, long before there is a recv.
void late_receiver(Rank& rank) {
  Talk talk(rank);
  for (const uint64_t size : {uint64_t{12}, uint64_t{60'000}, 3 * kMiB}) {
    rank.step(say("sending ", size, " bytes to a rank that receives only after others have begun to talk"));
    Guarded output(size);
    Guarded input(size);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 2, size));
    Pending sending = talk.send(rank.next(), 2, output.data(), size);
    rank.barrier();
    // Other traffic passes a message that waits; without tags it would have to wait behind it.
    if (rank.has_flag(BP_BACKEND_TAGS)) talk.round(3);
    bp_result result = make_result();
    Pending receiving = talk.recv(rank.previous(), 2, input.data(), size, &result);
    talk.finish(receiving, "a late recv");
    talk.finish(sending, "a send whose recv was late");
    talk.expect_report("a late recv", result, rank.previous(), size);
    talk.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 2, size));
  }
}

// A recv waits before there is any message, and does not mind what comes for others meanwhile.
void early_receiver(Rank& rank) {
  Talk talk(rank);
  for (const uint64_t size : {uint64_t{12}, uint64_t{60'000}, 3 * kMiB}) {
    rank.step(say("receiving ", size, " bytes that are sent only after others have talked"));
    Guarded output(size);
    Guarded input(size);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 4, size));
    Pending receiving = talk.recv(rank.previous(), 4, input.data(), size);
    if (rank.has_flag(BP_BACKEND_TAGS)) talk.round(5);
    rank.barrier();
    const Outcome early = receiving.test();
    rank.require(early.status == BP_AGAIN, "BP_AGAIN while nothing has been sent", early.text());
    rank.barrier();
    Pending sending = talk.send(rank.next(), 4, output.data(), size);
    talk.finish(receiving, "an early recv");
    talk.finish(sending, "a send");
    talk.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 4, size));
  }
}

constexpr uint64_t kSyncSizes[] = {1, 4'000, 70'000, 2 * kMiB};

// Either side with BP_OP_SYNC or without. The sends have a thread of their own, since they may wait for their recvs.
void sync_and_not(Rank& rank) {
  Talk talk(rank);
  for (const uint64_t size : kSyncSizes) {
    for (const uint64_t mode : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
      const uint64_t send_flags = (mode & 1) != 0 ? BP_OP_SYNC : 0;
      const uint64_t recv_flags = (mode & 2) != 0 ? BP_OP_SYNC : 0;
      rank.step(say("sending ", size, " bytes ", send_flags != 0 ? "with" : "without", " BP_OP_SYNC and receiving ",
                    recv_flags != 0 ? "with" : "without"));
      Guarded output(size);
      Guarded input(size);
      fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 6, size + mode));
      Outcome sent;
      Thread sender([&talk, &rank, &output, &sent, send_flags] {
        Pending sending = talk.send(rank.next(), 6, output.data(), output.size(), send_flags);
        sent = sending.finish(rank.scaled(kEnough));
      });
      bp_result result = make_result();
      Pending receiving = talk.recv(rank.previous(), 6, input.data(), size, &result, recv_flags);
      const Outcome received = receiving.finish(rank.scaled(kEnough));
      sender.join();
      rank.require_ok(sent, "the send");
      rank.require_ok(received, "the recv");
      talk.expect_report("the recv", result, rank.previous(), size);
      talk.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 6, size + mode));
    }
  }
}

void ping_pong(Rank& rank) {
  Talk talk(rank);
  const int32_t other = rank.id() ^ 1;
  rank.step("passing a number to and fro 300 times");
  if (other >= rank.size()) return;
  uint64_t number = 0;
  const uint64_t flags = BP_OP_SYNC;
  for (uint64_t turn = 0; turn < 300; ++turn) {
    const bool sends = (turn % 2 == 0) == (rank.id() < other);
    Pending pending = sends ? talk.send(other, 7, &number, sizeof number, turn % 3 == 0 ? 0 : flags)
                            : talk.recv(other, 7, &number, sizeof number, nullptr, turn % 3 == 0 ? 0 : flags);
    talk.finish(pending, say(sends ? "send " : "recv ", turn));
    rank.require(number == turn / 2 * 2 + (sends ? turn % 2 : turn % 2), say("number ", turn), say(number));
    number = turn + 1;
  }
}

// Unreceived messages are dropped at the end and do not delay destroy.
void unreceived(Rank& rank) {
  for (const uint64_t size : {uint64_t{10}, uint64_t{2'000'000}}) {
    rank.step(say("sending ", size, " bytes without a recv, and leaving"));
    Plan plan;
    plan.space = say("unreceived", size);
    Talk talk(rank, plan);
    const Guarded output(size);
    Pending sending = talk.send(rank.next(), 8, output.data(), size);
    talk.round(9);
    sending.finish(0);
    rank.barrier();
    const Nanoseconds start = now();
    talk.agent().close();
    rank.require(now() - start < rank.scaled(10 * kSecond), "destroy takes a few seconds at most",
                 say((now() - start) / kMillisecond, " ms"));
    rank.barrier();
  }
}

}  // namespace

std::vector<Case> p2p_flow_cases() {
  return {
      {.group = "p2p",
       .name = "flood-unexpected",
       .about = "thousands of unexpected messages arrive in order, and memory grows in proportion to their size",
       .body = flood_unexpected},
      {.group = "p2p",
       .name = "late-receiver",
       .about = "a message waits for its recv, and messages with other tags pass it",
       .body = late_receiver},
      {.group = "p2p",
       .name = "early-receiver",
       .about = "a recv does not end before its message arrives",
       .needs = {.ranks = 2},
       .body = early_receiver},
      {.group = "p2p",
       .name = "sync-and-not",
       .about = "send and recv work with BP_OP_SYNC and without, on either side",
       .body = sync_and_not},
      {.group = "p2p", .name = "ping-pong", .about = "two ranks take turns", .needs = {.ranks = 2}, .body = ping_pong},
      {.group = "p2p",
       .name = "unreceived",
       .about = "unreceived messages are dropped at the end and delay no rank",
       .needs = {.ranks = 2},
       .body = unreceived},
  };
}

}  // namespace backplane::conformance
