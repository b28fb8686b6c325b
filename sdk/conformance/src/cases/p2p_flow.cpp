// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

#include "groups.hpp"
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
  VerifiedAgent verified(rank);
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
  rank.step(fmt::format("sending {} messages before any recv", kMessages));
  for (uint64_t i = 0; i < kMessages; ++i) sends.push_back(verified.send(rank.next(), 1, &outputs[i * kSize], kSize));
  rank.barrier();
  rank.step(fmt::format("receiving {} messages that came early", kMessages));
  Guarded input(kSize);
  for (uint64_t i = 0; i < kMessages; ++i) {
    bp_result result = make_result();
    Pending receiving = verified.recv(rank.previous(), 1, input.data(), kSize, &result);
    verified.finish(receiving, fmt::format("a recv of message {}", i));
    verified.expect_report("the recv", result, rank.previous(), kSize);
    verified.expect(fmt::format("message {} of {}", i, kMessages), input.data(), kSize,
                    message_name(rank.previous(), rank.id(), 1, i));
  }
  const uint64_t after = resident_bytes();
  verified.finish_all(sends, "send");
  if (has_sanitizer() || before == 0) return;
  rank.require(after < before + bound,
               fmt::format("at most {} MiB for {} messages of {} bytes", bound >> 20, senders * kMessages, kSize),
               fmt::format("{} MiB", (after - before) >> 20));
}

// The message is sent, or its sender waits, long before a recv is posted.
void late_receiver(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const uint64_t size : {uint64_t{12}, uint64_t{60'000}, 3 * kMiB}) {
    rank.step(fmt::format("sending {} bytes to a rank that receives only after others have begun to talk", size));
    Guarded output(size);
    Guarded input(size);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 2, size));
    Pending sending = verified.send(rank.next(), 2, output.data(), size);
    rank.barrier();
    // Other traffic overtakes a waiting message. Without tags it would have to wait.
    if (rank.has_flag(BP_BACKEND_TAGS)) verified.round(3);
    bp_result result = make_result();
    Pending receiving = verified.recv(rank.previous(), 2, input.data(), size, &result);
    verified.finish(receiving, "a late recv");
    verified.finish(sending, "a send whose recv was late");
    verified.expect_report("a late recv", result, rank.previous(), size);
    verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 2, size));
  }
}

// A recv waits before its message is sent. Messages for other recvs do not affect it.
void early_receiver(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const uint64_t size : {uint64_t{12}, uint64_t{60'000}, 3 * kMiB}) {
    rank.step(fmt::format("receiving {} bytes that are sent only after others have talked", size));
    Guarded output(size);
    Guarded input(size);
    fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 4, size));
    Pending receiving = verified.recv(rank.previous(), 4, input.data(), size);
    if (rank.has_flag(BP_BACKEND_TAGS)) verified.round(5);
    rank.barrier();
    const Outcome early = receiving.test();
    rank.require(early.status == BP_AGAIN, "BP_AGAIN while nothing has been sent", early.text());
    rank.barrier();
    Pending sending = verified.send(rank.next(), 4, output.data(), size);
    verified.finish(receiving, "an early recv");
    verified.finish(sending, "a send");
    verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 4, size));
  }
}

constexpr uint64_t kSyncSizes[] = {1, 4'000, 70'000, 2 * kMiB};

// Each side with and without BP_OP_SYNC. The sends run on a separate thread, since they may wait for their recvs.
void sync_and_not(Rank& rank) {
  VerifiedAgent verified(rank);
  for (const uint64_t size : kSyncSizes) {
    for (const uint64_t mode : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
      const uint64_t send_flags = (mode & 1) != 0 ? BP_OP_SYNC : 0;
      const uint64_t recv_flags = (mode & 2) != 0 ? BP_OP_SYNC : 0;
      rank.step(fmt::format("sending {} bytes {} BP_OP_SYNC and receiving {}", size,
                            send_flags != 0 ? "with" : "without", recv_flags != 0 ? "with" : "without"));
      Guarded output(size);
      Guarded input(size);
      fill_pattern(output.data(), size, message_name(rank.id(), rank.next(), 6, size + mode));
      Outcome sent;
      Thread sender([&verified, &rank, &output, &sent, send_flags] {
        Pending sending = verified.send(rank.next(), 6, output.data(), output.size(), send_flags);
        sent = sending.finish(rank.hang_limit(kWaitLimit));
      });
      bp_result result = make_result();
      Pending receiving = verified.recv(rank.previous(), 6, input.data(), size, &result, recv_flags);
      const Outcome received = receiving.finish(rank.hang_limit(kWaitLimit));
      sender.join();
      rank.require_ok(sent, "the send");
      rank.require_ok(received, "the recv");
      verified.expect_report("the recv", result, rank.previous(), size);
      verified.expect("the message", input.data(), size, message_name(rank.previous(), rank.id(), 6, size + mode));
    }
  }
}

void ping_pong(Rank& rank) {
  VerifiedAgent verified(rank);
  const int32_t other = rank.id() ^ 1;
  rank.step("passing a number to and fro 300 times");
  if (other >= rank.size()) return;
  uint64_t number = 0;
  const uint64_t flags = BP_OP_SYNC;
  for (uint64_t turn = 0; turn < 300; ++turn) {
    const bool sends = (turn % 2 == 0) == (rank.id() < other);
    Pending pending = sends ? verified.send(other, 7, &number, sizeof number, turn % 3 == 0 ? 0 : flags)
                            : verified.recv(other, 7, &number, sizeof number, nullptr, turn % 3 == 0 ? 0 : flags);
    verified.finish(pending, fmt::format("{}{}", sends ? "send " : "recv ", turn));
    rank.require(number == turn / 2 * 2 + (sends ? turn % 2 : turn % 2), fmt::format("number {}", turn),
                 std::to_string(number));
    number = turn + 1;
  }
}

// Unreceived messages are dropped at the end and do not delay destroy.
void unreceived(Rank& rank) {
  for (const uint64_t size : {uint64_t{10}, uint64_t{2'000'000}}) {
    rank.step(fmt::format("sending {} bytes without a recv, and leaving", size));
    Plan plan;
    plan.space = fmt::format("unreceived{}", size);
    VerifiedAgent verified(rank, plan);
    const Guarded output(size);
    Pending sending = verified.send(rank.next(), 8, output.data(), size);
    verified.round(9);
    sending.finish(0);
    rank.barrier();
    const Stopwatch watch;
    verified.agent().close();
    rank.check_time(watch.took(), rank.scaled(10 * kSecond), "destroy returns");
    rank.barrier();
  }
}

}  // namespace

std::vector<Case> p2p_flow_cases() {
  return {
      Case("flood-unexpected",
           "thousands of unexpected messages arrive in order, and memory grows in proportion to their size",
           flood_unexpected),
      Case("late-receiver", "a message waits for its recv, and messages with other tags pass it", late_receiver),
      Case("early-receiver", "a recv does not end before its message arrives", early_receiver, {.ranks = 2}),
      Case("sync-and-not", "send and recv work with BP_OP_SYNC and without, on either side", sync_and_not),
      Case("ping-pong", "two ranks take turns", ping_pong, {.ranks = 2}),
      Case("unreceived", "unreceived messages are dropped at the end and delay no rank", unreceived, {.ranks = 2}),
  };
}

}  // namespace backplane::conformance
