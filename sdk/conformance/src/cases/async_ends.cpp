// SPDX-License-Identifier: Apache-2.0
//
// Cancellation of operations in flight, and the end of a group that has some.
#include <algorithm>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr uint64_t kMessageSize = 3000;

// The message that each rank expects from the one before it, sent at last.
struct Message {
  explicit Message(Rank& rank)
      : sent(bytes_of(static_cast<uint64_t>(rank.id()) + 1, kMessageSize)), got(kMessageSize) {}
  Pending receive(Rank& rank, Agent& agent) { return agent.irecv(rank.previous(), 1, got.data(), kMessageSize); }
  Pending send(Rank& rank, Agent& agent) { return agent.isend(rank.next(), 1, sent.data(), kMessageSize); }
  void check(Rank& rank) {
    require_bytes(rank, got, static_cast<uint64_t>(rank.previous()) + 1, "the message of the rank before");
  }

  std::vector<uint8_t> sent;
  std::vector<uint8_t> got;
};

// After a cancel: either the recv ended with BP_CANCELLED and the message goes to the next recv, or the cancel had no
// effect and the recv gets the message.
void expect_cancelled_or_message(Rank& rank, Agent& agent, Message& message, Pending& recv, const Outcome& after) {
  rank.require(after.status == BP_CANCELLED || after.status == BP_AGAIN,
               "a cancelled recv ends with BP_CANCELLED or stays in flight", after.text());
  if (after.status == BP_CANCELLED) {
    recv.release();
    std::fill(message.got.begin(), message.got.end(), uint8_t{0});
    recv = message.receive(rank, agent);
  }
  rank.barrier();
  Pending send = message.send(rank, agent);
  rank.step("receiving after a cancel");
  rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)),
                  after.status == BP_CANCELLED ? "a recv after a cancelled one" : "a recv that could not be cancelled");
  message.check(rank);
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "the send");
  ring(rank, agent, "after a cancel", 2);
}

void cancel_recv(Rank& rank) {
  const auto agent = rank.open();
  Message message(rank);
  Pending recv = message.receive(rank, *agent);
  rank.require_ok(recv.submitted(), "submit of a recv");
  rank.step("cancelling a recv whose message was not sent");
  recv.cancel();
  recv.cancel();
  const Outcome after = recv.wait(kSecond / 5);
  expect_cancelled_or_message(rank, *agent, message, recv, after);
}

void cancel_beside_wait(Rank& rank) {
  const auto agent = rank.open();
  Message message(rank);
  Pending recv = message.receive(rank, *agent);
  Outcome seen;
  {
    const TestThread waiting([&] { seen = recv.wait(kSecond / 2); });
    waiting.await_asleep();
    rank.step("cancelling a recv for which another thread waits");
    const Stopwatch watch;
    recv.cancel();
    rank.check_time(watch.took(), rank.scaled(kSecond / 4), "work_cancel returns, while another thread waits 500 ms,");
  }
  expect_cancelled_or_message(rank, *agent, message, recv, seen);
}

void cancel_when_done(Rank& rank) {
  const auto agent = rank.open();
  Message message(rank);
  Pending recv = message.receive(rank, *agent);
  Pending send = message.send(rank, *agent);
  rank.step("waiting for a message");
  rank.require_ok(recv.wait(rank.hang_limit(kEndLimit)), "a recv");
  rank.step("cancelling operations that are done");
  recv.cancel();
  const Outcome after = recv.wait(0);
  rank.require(after.ok(), "a recv that was done stays so when it is cancelled", after.text());
  message.check(rank);
  recv.release();
  rank.require_ok(send.wait(rank.hang_limit(kEndLimit)), "a send");
  send.cancel();
  const Outcome sent = send.wait(0);
  rank.require(sent.ok(), "a send that was done stays so when it is cancelled", sent.text());
  send.release();
  ring(rank, *agent, "after cancels that came too late", 2);
}

// A cancelled send may be received or not. Later operations must be unaffected, and the caller may reuse its buffer.
void cancel_send(Rank& rank) {
  const auto agent = rank.open();
  rank.barrier();
  {
    std::vector<uint8_t> large(kLarge, 3);
    std::vector<Pending> sends;
    sends.push_back(agent->isend(rank.next(), kSilentTag, large.data(), large.size()));
    rank.step("cancelling a send without a recv");
    sends[0].cancel();
    const Outcome after = sends[0].wait(rank.scaled(kSecond));
    rank.require(after.ok() || after.status == BP_CANCELLED || after.status == BP_AGAIN,
                 "a cancelled send ends with BP_OK or BP_CANCELLED or stays in flight", after.text());
    if (after.status == BP_AGAIN) rank.skip("this backend cannot cancel a large send without a recv");
    if (sends[0].in_flight()) sends[0].release();
    std::fill(large.begin(), large.end(), uint8_t{4});
  }
  ring(rank, *agent, "after a cancelled send", 2);
}

// The first half of the works is released, in any order, while the other half is still in flight.
void release_in_any_order(Rank& rank) {
  constexpr size_t kCount = 16;
  const auto agent = rank.open();
  const auto key = [](int32_t sender, size_t i) { return i * 100 + static_cast<uint64_t>(sender); };
  std::vector<std::vector<uint8_t>> sent;
  std::vector<std::vector<uint8_t>> got(kCount, std::vector<uint8_t>(kMessageSize));
  std::vector<Pending> recvs;
  std::vector<Pending> sends;
  for (size_t i = 0; i < kCount; ++i) recvs.push_back(agent->irecv(rank.previous(), 5, got[i].data(), kMessageSize));
  for (size_t i = 0; i < kCount; ++i) sent.push_back(bytes_of(key(rank.id(), i), kMessageSize));
  rank.barrier();
  for (const size_t begin : {size_t{0}, kCount / 2}) {
    rank.step(fmt::format("waiting for messages {} and following, to be released in any order", begin));
    const size_t end = begin + kCount / 2;
    std::vector<Pending*> ended;
    for (size_t i = begin; i < end; ++i) {
      sends.push_back(agent->isend(rank.next(), 5, sent[i].data(), kMessageSize));
      ended.push_back(&recvs[i]);
    }
    for (size_t i = begin; i < end; ++i) {
      rank.require_ok(recvs[i].wait(rank.hang_limit(kEndLimit)), fmt::format("recv {} of {}", i, kCount));
      require_bytes(rank, got[i], key(rank.previous(), i), fmt::format("message {}", i));
    }
    std::shuffle(ended.begin(), ended.end(), rank.random());
    for (Pending* one : ended) one->release();
    rank.barrier();  // the other half is sent after all ranks released the first
  }
  std::shuffle(sends.begin(), sends.end(), rank.random());
  for (Pending& one : sends) rank.require_ok(one.finish(rank.hang_limit(kEndLimit)), "a send");
  ring(rank, *agent, "after works were released in any order", 6);
}

// Rank 0 leaves when its sends are done, before the others receive its messages. The others continue.
void destroy_beside_peers(Rank& rank) {
  const auto agent = rank.open();
  const auto key_of = [](int32_t to) { return static_cast<uint64_t>(to) * 31 + 7; };
  if (rank.id() == 0) {
    std::vector<std::vector<uint8_t>> sent;
    std::vector<Pending> sends;
    for (int32_t to = 1; to < rank.size(); ++to) {
      sent.push_back(bytes_of(key_of(to), kMessageSize));
      sends.push_back(agent->isend(to, 1, sent.back().data(), kMessageSize));
    }
    rank.step("sending to all others before destroy");
    for (Pending& send : sends) rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "a send before destroy");
    close_in_time(rank, *agent, "while the other ranks are busy");
    return;
  }
  std::vector<uint8_t> got(kMessageSize);
  const int32_t others = rank.size() - 1;
  for (int32_t step = 1; step < others; ++step) {
    rank.step("exchanging messages while rank 0 leaves");
    const int32_t to = 1 + (rank.id() - 1 + step) % others;
    const int32_t from = 1 + (rank.id() - 1 + others - step) % others;
    const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()), kMessageSize);
    Pending recv = agent->irecv(from, 2, got.data(), kMessageSize);
    Pending send = agent->isend(to, 2, sent.data(), kMessageSize);
    rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)),
                    fmt::format("a recv from rank {} while rank 0 leaves", from));
    rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), fmt::format("a send to rank {} while rank 0 leaves", to));
    require_bytes(rank, got, static_cast<uint64_t>(from), fmt::format("the message of rank {}", from));
  }
  rank.step("receiving messages sent before rank 0 destroyed its group");
  rank.require_ok(agent->irecv(0, 1, got.data(), kMessageSize).finish(rank.hang_limit(kEndLimit)),
                  "a recv of a message sent before the sender's destroy");
  require_bytes(rank, got, key_of(rank.id()), "the message that was sent before destroy");
}

// Ends a group with operations in flight as the core does: cancel, abort if necessary, release, destroy.
void destroy_with_pending(Rank& rank) {
  for (int round = 0; round < 2; ++round) {
    const auto agent = rank.open(in_space(fmt::format("round {}", round)));
    std::vector<uint8_t> memory(kMessageSize);
    std::vector<uint8_t> large(kLarge, 1);
    std::vector<Pending> all;
    all.push_back(agent->submit(unmatched_recv(*agent, memory.data(), kMessageSize)));
    if (round == 1) all.push_back(agent->isend(rank.next(), kSilentTag - 1, large.data(), kLarge));
    rank.barrier();
    rank.step("cancelling operations in flight before destroy");
    for (Pending& one : all) one.cancel();
    for (Pending& one : all) static_cast<void>(one.wait(kSecond / 10));
    rank.step("aborting before destroy");
    const Stopwatch watch;
    agent->abort(BP_CANCELLED, -1, "the group is being destroyed");
    for (Pending& one : all) {
      const Outcome end = one.wait(rank.hang_limit(kEndLimit));
      rank.require(end.status != BP_AGAIN, "an operation that was cancelled and aborted is over",
                   "it is still in flight");
    }
    rank.check_time(watch.took(), rank.scaled(kAbortBound), "abort ends operations");
    for (Pending& one : all) one.release();
    close_in_time(rank, *agent, "of a group whose operations were cancelled");
  }
  const auto fresh = rank.open(in_space("fresh"));
  ring(rank, *fresh, "in a group that was made afterwards", 1);
}

}  // namespace

std::vector<Case> async_end_cases() {
  return {
      Case("cancel-recv", "work_cancel ends a recv with BP_CANCELLED or does nothing; the group stays usable",
           cancel_recv),
      Case("cancel-beside-wait", "work_cancel may come from another thread than the one that waits",
           cancel_beside_wait),
      Case("cancel-when-done", "work_cancel of a terminal work changes nothing", cancel_when_done),
      Case("cancel-send", "operations after a cancelled send are unaffected", cancel_send, {.flags = BP_BACKEND_TAGS}),
      Case("dropped-handle", "works may be released in any order once they are terminal", release_in_any_order),
      Case("destroy-beside-peers", "messages arrive although the sender destroys its group at once",
           destroy_beside_peers, {.ranks = 2}),
      Case("destroy-with-pending", "a group with operations in flight ends by cancel, abort, release, destroy",
           destroy_with_pending),
  };
}

}  // namespace backplane::conformance
