// SPDX-License-Identifier: Apache-2.0
//
// Operations in streams of a device (abi/ext/device.h), and the order of later work in the stream.
#include <utility>

#include "async_support.hpp"
#include "device_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {

bp_op OnDevice::send(int32_t peer, uint64_t tag, const Piece& piece) const {
  bp_op op = send_op(peer, tag, nullptr, 0);
  op.input = buffer(piece);
  return op;
}

bp_op OnDevice::recv(int32_t peer, uint64_t tag, const Piece& piece) const {
  bp_op op = recv_op(peer, tag, nullptr, 0);
  op.output = buffer(piece);
  return op;
}

Outcome OnDevice::wait_on_stream(const Pending& pending, Nanoseconds timeout) const {
  Outcome outcome;
  if (!pending.in_flight()) return pending.submitted();
  outcome.status = api.wait_on_stream(api.ctx, pending.work(), nullptr, timeout, &outcome.error);
  return outcome;
}

OnDevice open_on_device(Rank& rank) {
  auto agent = rank.open();
  rank.barrier();  // a body may end its group at once
  const auto* api = static_cast<const bp_device_api*>(agent->api().extension(agent->self(), BP_EXT_DEVICE));
  if (api == nullptr) rank.skip(fmt::format("the backend works in no streams of a device ({})", BP_EXT_DEVICE));
  rank.require(BP_HAS(api, copy) && api->wait_on_stream != nullptr && api->copy != nullptr,
               fmt::format("a table of {} with wait_on_stream and copy", BP_EXT_DEVICE), "one without");
  if (!agent->use_device_memory())
    rank.skip(fmt::format("the backend hands out no memory of its device ({})", BP_EXT_MEMORY));
  const Source source = memory_of(rank, *agent);
  return {std::move(agent), *api, source};
}

namespace {

// Skips the case unless the operation is native on memory of a device.
void need(Rank& rank, uint32_t op, const char* name) {
  const bp_capability* const has = rank.capability(op);
  if (has == nullptr || (has->memory & BP_BIT(BP_CUDA)) == 0)
    rank.skip(fmt::format("no {} in memory of a device", name));
}

// An all_reduce of one number, which needs every rank. It has been done once, so that all ranks are connected.
class ConnectedAllReduce {
 public:
  ConnectedAllReduce(Rank& rank, const OnDevice& device)
      : rank_(rank), device_(device), number_(device.piece(rank, 4)) {
    need(rank, BP_ALL_REDUCE, "all_reduce");
    rank.step("in the first all_reduce");
    rank.require_ok(start().finish(rank.hang_limit(kEndLimit)), "the first all_reduce");
    rank.barrier();
  }
  Pending start() {
    const int32_t one = 1;
    rank_.require(device_.source.copies->copy(number_.data(), &one, 4), "a copy to the device", "a refusal");
    bp_op op = make_op(BP_ALL_REDUCE, BP_I32);
    op.reduce_op = BP_SUM;
    op.seq = ++seq_;
    op.timeout_ns = BP_NO_TIMEOUT;
    op.input = op.output = device_.buffer(number_, 0, 1);
    return device_.agent->submit(op);
  }
  void finish(Pending& pending) {
    rank_.require_ok(pending.finish(rank_.hang_limit(kEndLimit)), "the all_reduce");
    int32_t sum = 0;
    rank_.require(device_.source.copies->copy(&sum, number_.data(), 4), "a copy from the device", "a refusal");
    rank_.require(sum == rank_.size(), fmt::format("a sum of {}", rank_.size()), std::to_string(sum));
  }

 private:
  Rank& rank_;
  const OnDevice& device_;
  const Piece number_;
  uint64_t seq_ = 0;
};

// Rank 1 orders operations after a message that it has not received yet.
class Chain {
 public:
  explicit Chain(Rank& rank)
      : rank_(rank),
        device_(open_on_device(rank)),
        message_(device_.piece(rank, kSize)),
        back_(device_.piece(rank, kSize)),
        tail_(device_.piece(rank, kTail)) {
    rank.step("in the first broadcast");
    rank.require_ok(broadcast().finish(rank.hang_limit(kEndLimit)), "the first broadcast");
    rank.barrier();
    message_.fill(rank.id() == 0 ? kNew : kOld);
  }

  // For rank 1. The sender is told to send once the stream waits, or once it is clear that the stream can wait only
  // after the send.
  void receive() {
    pending_.push_back(device_.agent->submit(device_.recv(0, 9, message_)));
    rank_.step("having a stream wait for a recv");
    const Outcome early = device_.wait_on_stream(pending_[0], rank_.scaled(kSecond / 10));
    rank_.require(early.ok() || early.status == BP_AGAIN, "wait_on_stream to answer BP_OK or BP_AGAIN", early.text());
    if (!early.ok()) {
      rank_.publish("send", "now");
      rank_.require_ok(device_.wait_on_stream(pending_[0], rank_.hang_limit(kEndLimit)),
                       "wait_on_stream, the other end being there");
    }
    pending_.push_back(broadcast());
    pending_.push_back(device_.agent->submit(device_.send(0, 10, message_)));
    if (early.ok()) rank_.publish("send", "now");
  }
  // For the other ranks.
  void take_part() {
    if (rank_.id() == 0) {
      pending_.push_back(device_.agent->submit(device_.recv(1, 10, back_)));
      rank_.await_value("send");
      pending_.push_back(device_.agent->submit(device_.send(1, 9, message_)));
    }
    pending_.push_back(broadcast());
  }
  void finish() {
    rank_.step("waiting for operations enqueued after a recv");
    for (Pending& each : pending_)
      rank_.require_ok(each.finish(rank_.hang_limit(kEndLimit)), "an operation enqueued after a recv");
    if (rank_.id() == 0) require_kept(rank_, back_, kNew, "in a message that was put behind a recv");
    std::vector<std::byte> tail(kTail);
    const std::byte* const from = rank_.id() == 1 ? message_.data() + kSize - kTail : tail_.data();
    rank_.require(device_.source.copies->copy(tail.data(), from, kTail), "a copy from the device", "a refusal");
    rank_.require(tail.front() == Piece::byte_at(kNew, kSize - kTail),
                  "the received data, in a broadcast enqueued after a recv",
                  fmt::format("byte {}", static_cast<int>(tail.front())));
    rank_.barrier();
  }

 private:
  static constexpr uint64_t kSize = UINT64_C(1) << 20;
  static constexpr uint64_t kTail = 64;  // bytes at the end that are broadcast
  static constexpr uint64_t kOld = 1;
  static constexpr uint64_t kNew = 2;

  Pending broadcast() {
    bp_op op = make_op(BP_BROADCAST);
    op.root = 1;
    op.seq = ++seq_;
    op.output = rank_.id() == 1 ? device_.buffer(message_, kSize - kTail, kTail) : device_.buffer(tail_);
    if (rank_.id() == 1) op.input = op.output;
    return device_.agent->submit(op);
  }

  Rank& rank_;
  const OnDevice device_;
  const Piece message_;
  const Piece back_;
  const Piece tail_;
  std::vector<Pending> pending_;
  uint64_t seq_ = 0;
};

void wait_on_stream(Rank& rank) {
  need(rank, BP_BROADCAST, "broadcast");
  Chain chain(rank);
  if (rank.id() == 1) {
    chain.receive();
  } else {
    chain.take_part();
  }
  chain.finish();
}

void order_early(Rank& rank) {
  const OnDevice device = open_on_device(rank);
  ConnectedAllReduce all_reduce(rank, device);
  if (rank.id() != 0) rank.await_value("ordered");
  Pending pending = all_reduce.start();
  if (rank.id() == 0) {
    rank.step("having a stream wait for an all_reduce that the other ranks have not begun");
    rank.require_ok(device.wait_on_stream(pending, rank.hang_limit(kEndLimit) / 2),
                    "wait_on_stream, before the other ranks have come");
    rank.require(pending.test().status == BP_AGAIN, "an all_reduce that waits for the other ranks",
                 pending.test().text());
    rank.publish("ordered", "yes");
  }
  all_reduce.finish(pending);
}

void order_beside_wait(Rank& rank) {
  const OnDevice device = open_on_device(rank);
  ConnectedAllReduce all_reduce(rank, device);
  if (rank.id() != 0) rank.await_value("ordered");
  Pending pending = all_reduce.start();
  if (rank.id() == 0) {
    const TestThread waiting([&pending] { pending.wait(BP_NO_TIMEOUT); });
    waiting.await_asleep();
    rank.step("having a stream wait for an all_reduce beside a thread in work_wait");
    const Outcome ordered = device.wait_on_stream(pending, rank.hang_limit(kEndLimit) / 2);
    const bool was_waiting = !waiting.ended();
    rank.publish("ordered", "yes");
    rank.require(waiting.await(rank.hang_limit(kEndLimit)), "work_wait to end with the all_reduce", "it does not");
    rank.require_ok(ordered, "wait_on_stream, beside a thread in work_wait");
    rank.require(was_waiting, "an all_reduce that waits for the other ranks", "one that was over");
  }
  all_reduce.finish(pending);
}

// Timeouts of wait_on_stream. A backend that enqueues before its peer is ready does not wait.
void order_limits(Rank& rank) {
  const OnDevice device = open_on_device(rank);
  const Piece message = device.piece(rank, 1000);
  message.fill(rank.id() == 1 ? 2 : 1);
  if (rank.id() == 0) {
    Pending recv = device.agent->submit(device.recv(1, 5, message));
    for (const Nanoseconds timeout : {Nanoseconds{0}, kSecond / 5}) {
      rank.step("making a stream wait for a recv before its send");
      const Stopwatch watch;
      const Outcome ordered = device.wait_on_stream(recv, timeout);
      const Nanoseconds took = watch.took();
      rank.require(ordered.ok() || ordered.status == BP_AGAIN, "wait_on_stream to answer BP_OK or BP_AGAIN",
                   ordered.text());
      rank.check_time(took, timeout + rank.scaled(kSecond), "wait_on_stream returns");
    }
    rank.publish("send", "now");
    rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)), "the recv");
    require_kept(rank, message, 2, "in the message");
  } else if (rank.id() == 1) {
    rank.await_value("send");
    rank.require_ok(device.agent->run(device.send(0, 5, message)), "the send");
  }
  rank.barrier();
}

void order_aborted(Rank& rank) {
  const OnDevice device = open_on_device(rank);
  if (rank.id() != 0) return rank.barrier();
  const Piece message = device.piece(rank, 1000);
  Pending recv = device.agent->submit(device.recv(rank.next(), kSilentTag, message));
  struct Seen {
    Outcome outcome;
    Nanoseconds at = 0;
  };
  const auto seen = std::make_shared<Seen>();
  const TestThread ordering([&device, &recv, seen] {
    seen->outcome = device.wait_on_stream(recv, BP_NO_TIMEOUT);
    seen->at = now();
  });
  ordering.await_asleep();
  const bool ahead = ordering.ended();  // it had nothing to wait for
  rank.step("aborting while a thread is in wait_on_stream");
  const Stopwatch watch;
  device.agent->abort(BP_CANCELLED, -1, "the case wants it");
  rank.require(ordering.await(rank.hang_limit(kEndLimit)), "wait_on_stream to end with an abort", "it does not");
  if (!ahead) {
    rank.require(seen->outcome.status == BP_CANCELLED, "BP_CANCELLED, as abort says", seen->outcome.text());
    rank.check_time(watch.took(seen->at), rank.scaled(kAbortBound), "abort ends wait_on_stream");
  }
  recv.finish(rank.hang_limit(kEndLimit));
  rank.barrier();
}

void order_ended(Rank& rank) {
  const OnDevice device = open_on_device(rank);
  const Piece message = device.piece(rank, 1000);
  Pending recv = device.agent->submit(device.recv(rank.id(), 5, message));
  Pending send = device.agent->submit(device.send(rank.id(), 5, message));
  for (Pending* const each : {&recv, &send}) {
    rank.require_ok(each->wait(rank.hang_limit(kEndLimit)), "a message to this rank itself");
    rank.require_ok(device.wait_on_stream(*each, rank.hang_limit(kEndLimit)),
                    "wait_on_stream of a completed operation");
    each->release();
  }
  Pending unmatched_recv = device.agent->submit(device.recv(rank.next(), kSilentTag, message));
  unmatched_recv.cancel();
  const Outcome ended = unmatched_recv.wait(rank.hang_limit(kEndLimit));
  const Outcome ordered = device.wait_on_stream(unmatched_recv, rank.hang_limit(kEndLimit));
  rank.require(ordered.status == ended.status,
               fmt::format("wait_on_stream to answer {}, as work_wait did", status_name(ended.status)), ordered.text());
  unmatched_recv.release();
}

}  // namespace

std::vector<Case> device_cases() {
  return {
      Case("order", "work enqueued after wait_on_stream runs after the operation", wait_on_stream, {.ranks = 2}),
      Case("order-early", "wait_on_stream returns when a collective is launched, without the other ranks", order_early,
           {.ranks = 2}),
      Case("order-beside-wait", "wait_on_stream does not wait for a thread in work_wait", order_beside_wait,
           {.ranks = 2}),
      Case("order-limits", "wait_on_stream keeps its timeout", order_limits, {.ranks = 2}),
      Case("order-aborted", "an abort ends wait_on_stream within half a second, with its cause", order_aborted,
           {.ranks = 2}),
      Case("order-ended", "wait_on_stream of a terminal operation returns what work_wait returns", order_ended,
           {.ranks = 2}),
  };
}

}  // namespace backplane::conformance
