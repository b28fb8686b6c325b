// SPDX-License-Identifier: Apache-2.0
//
// Operations in flight: the results of work_test and work_wait. Since the ABI has no callbacks, a thread that waits and
// then submits stands for a callback.
#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {

std::vector<Case> async_answer_cases();  // async_answers.cpp
std::vector<Case> async_end_cases();     // async_ends.cpp
std::vector<Case> async_notify_cases();  // async_notify.cpp

namespace {

constexpr uint64_t kSize = 3000;

void must_be(Rank& rank, const Outcome& outcome, int32_t status, const std::string& what) {
  rank.require(outcome.status == status, what + " says " + status_name(status), outcome.text());
}

// A recv from the rank before, and the message that the next one waits for.
struct Exchange {
  explicit Exchange(Rank& rank, uint64_t tag = 1)
      : key(tag * 1000), tag(tag), sent(bytes_of(key + static_cast<uint64_t>(rank.id()), kSize)), got(kSize) {}
  Pending receive(Rank& rank, Agent& agent) { return agent.irecv(rank.previous(), tag, got.data(), kSize); }
  void send(Rank& rank, Agent& agent) {
    sending = agent.isend(rank.next(), tag, sent.data(), kSize);
    rank.require_ok(sending.submitted(), "submit of the send");
  }
  void check(Rank& rank) {
    require_bytes(rank, got, key + static_cast<uint64_t>(rank.previous()), fmt::format("the message with tag {}", tag));
    rank.require_ok(sending.finish(rank.hang_limit(kEndLimit)), "the send");
  }

  uint64_t key;
  uint64_t tag;
  std::vector<uint8_t> sent;
  std::vector<uint8_t> got;
  Pending sending;
};

void test_is_monotonic(Rank& rank) {
  const auto agent = rank.open();
  Exchange exchange(rank);
  Pending recv = exchange.receive(rank, *agent);
  rank.require_ok(recv.submitted(), "submit of a recv");
  rank.require(recv.in_flight(), "a recv whose message was not sent is in flight", "submit says that it is done");
  rank.step("testing a recv before its message was sent");
  for (int i = 0; i < 100; ++i) must_be(rank, recv.test(), BP_AGAIN, "work_test before the message was sent");
  rank.barrier();
  exchange.send(rank, *agent);
  rank.step("testing a recv until its message has come");
  Outcome last;
  poll_until(rank.hang_limit(kEndLimit), [&] { return (last = recv.test()).status != BP_AGAIN; });
  must_be(rank, last, BP_OK, "work_test, asked again and again,");
  rank.step("testing a recv that is done");
  for (int i = 0; i < 100; ++i) must_be(rank, recv.test(), BP_OK, "work_test of an operation that is done");
  Outcome elsewhere;
  TestThread([&] {
    for (int i = 0; i < 100 && elsewhere.status == BP_OK; ++i) elsewhere = recv.test();
  }).await(rank.hang_limit(kEndLimit));
  must_be(rank, elsewhere, BP_OK, "work_test of an operation that is done, from another thread,");
  must_be(rank, recv.test(), BP_OK, "work_test of an operation that is done, at last,");
  recv.release();
  exchange.check(rank);
}

void wait_twice(Rank& rank) {
  const auto agent = rank.open();
  Exchange exchange(rank);
  Pending recv = exchange.receive(rank, *agent);
  exchange.send(rank, *agent);
  rank.step("waiting for a recv");
  must_be(rank, recv.wait(rank.hang_limit(kEndLimit)), BP_OK, "work_wait");
  rank.step("waiting for a recv that is done");
  for (const Nanoseconds timeout : {Nanoseconds{0}, Nanoseconds{1}, kSecond, Nanoseconds{BP_NO_TIMEOUT}}) {
    must_be(rank, recv.wait(timeout), BP_OK, fmt::format("work_wait, asked again with a timeout of {} ns,", timeout));
    must_be(rank, recv.test(), BP_OK, "work_test after work_wait");
  }
  recv.release();
  exchange.check(rank);
}

// Truncation is the one failure that every backend with recv must report.
void wait_after_error(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> small(8);
  const std::vector<uint8_t> large(kSize, 7);
  bp_result result = make_result();
  Pending recv = agent->irecv(rank.previous(), 1, small.data(), small.size(), &result);
  rank.barrier();
  Pending send = agent->isend(rank.next(), 1, large.data(), large.size());
  rank.step("waiting for a recv whose message is too long");
  must_be(rank, recv.wait(rank.hang_limit(kEndLimit)), BP_INVALID, "work_wait for a recv whose message is too long");
  rank.step("waiting for a recv that has failed");
  for (int i = 0; i < 20; ++i) {
    must_be(rank, recv.wait(i % 2 == 0 ? 0 : kSecond), BP_INVALID, "work_wait for a recv that has failed");
    must_be(rank, recv.test(), BP_INVALID, "work_test of a recv that has failed");
  }
  recv.release();
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "the send whose message was too long for its recv");
  ring(rank, *agent, "after a recv has failed", 2);
}

void short_waits(Rank& rank) {
  const auto agent = rank.open();
  Exchange exchange(rank);
  Pending recv = exchange.receive(rank, *agent);
  for (const Nanoseconds timeout :
       {Nanoseconds{0}, Nanoseconds{1}, Nanoseconds{1000}, kMillisecond, 20 * kMillisecond}) {
    rank.step(fmt::format("waiting {} ns for a message that was not sent", timeout));
    for (int i = 0; i < 3; ++i)
      must_be(rank, recv.wait(timeout), BP_AGAIN, fmt::format("work_wait with {} ns", timeout));
  }
  rank.barrier();
  exchange.send(rank, *agent);
  rank.step("waiting for a recv that short waits have not seen the end of");
  must_be(rank, recv.wait(rank.hang_limit(kEndLimit)), BP_OK, "work_wait after short waits that saw no end");
  recv.release();
  exchange.check(rank);
}

void wait_beside_submit(Rank& rank) {
  const auto agent = rank.open();
  Exchange last(rank, 1);
  Pending recv = last.receive(rank, *agent);
  Outcome seen;
  {
    const TestThread waiting([&] { seen = recv.wait(rank.hang_limit(kEndLimit) / 2); });
    waiting.await_asleep();
    for (uint64_t i = 0; i < 10; ++i) ring(rank, *agent, "while another thread waits for a recv", 10 + i, 1);
    rank.require(!waiting.ended(), "work_wait in another thread waits until the message comes", "it has returned");
    rank.step("waiting for the others while another thread waits for a recv");
    rank.barrier();
    last.send(rank, *agent);
  }
  must_be(rank, seen, BP_OK, "work_wait in a thread beside one that submits");
  recv.release();
  last.check(rank);
}

// The work that has just ended is not released before the next ones are submitted, as in a callback that submits.
void submit_at_the_end(Rank& rank) {
  const auto agent = rank.open();
  rank.step("submitting in the moment in which another operation has ended");
  Outcome failure;
  std::string what;
  TestThread([&] {
    std::vector<uint8_t> got(64);
    const std::vector<uint8_t> sent(64, 9);
    Pending recv = agent->irecv(rank.previous(), 0, got.data(), got.size());
    for (uint64_t i = 0; i < 100 && what.empty(); ++i) {
      Pending send = agent->isend(rank.next(), i, sent.data(), sent.size());
      if (!(failure = recv.wait(rank.hang_limit(kEndLimit) / 2)).ok()) what = fmt::format("recv {}", i);
      Pending following = agent->irecv(rank.previous(), i + 1, got.data(), got.size());
      if (what.empty() && !(failure = following.submitted()).ok()) what = fmt::format("submit of recv {}", i + 1);
      if (recv.in_flight() && what.empty()) recv.release();
      recv = std::move(following);
      if (const Outcome done = send.finish(rank.hang_limit(kEndLimit) / 2); what.empty() && !done.ok()) {
        failure = done;
        what = fmt::format("send {}", i);
      }
    }
    if (what.empty()) {
      Pending send = agent->isend(rank.next(), 100, sent.data(), sent.size());
      if (!(failure = recv.finish(rank.hang_limit(kEndLimit) / 2)).ok()) what = "recv 100";
      if (const Outcome done = send.finish(rank.hang_limit(kEndLimit) / 2); what.empty() && !done.ok()) {
        failure = done;
        what = "send 100";
      }
    }
  }).await(rank.hang_limit(2 * kEndLimit));
  rank.require(what.empty(), "operations that are submitted when another has just ended succeed",
               what + ": " + failure.text());
  ring(rank, *agent, "after that", 200);
}

void waits_in_several_threads(Rank& rank) {
  constexpr size_t kThreads = 4;
  const auto agent = rank.open();
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::vector<Pending> recvs;
  for (uint64_t i = 0; i < kThreads; ++i) {
    exchanges.push_back(std::make_unique<Exchange>(rank, i + 1));
    recvs.push_back(exchanges.back()->receive(rank, *agent));
  }
  std::vector<Outcome> seen(kThreads);
  {
    std::vector<std::unique_ptr<TestThread>> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.push_back(
          std::make_unique<TestThread>([&, i] { seen[i] = recvs[i].wait(rank.hang_limit(kEndLimit) / 2); }));
    }
    for (size_t i = kThreads; i-- > 0;) {
      rank.step(fmt::format("waiting in {} threads for one recv each; message {} is sent", kThreads, i));
      rank.barrier();
      exchanges[i]->send(rank, *agent);
      rank.require(threads[i]->await(rank.hang_limit(kEndLimit)), "the thread that waits for it is woken", "it is not");
    }
  }
  for (size_t i = 0; i < kThreads; ++i) {
    must_be(rank, seen[i], BP_OK, fmt::format("work_wait in thread {} of {}", i, kThreads));
    recvs[i].release();
    exchanges[i]->check(rank);
  }
}

// Pairs of ranks: one makes no call after submit; the operations of the other must still complete.
void autonomous(Rank& rank) {
  const auto agent = rank.open();
  const int32_t partner = rank.id() ^ 1;
  if (partner >= rank.size()) return;
  for (int32_t round = 0; round < 2; ++round) {
    const auto tag = static_cast<uint64_t>(round);
    const std::vector<uint8_t> sent = bytes_of(tag * 64 + static_cast<uint64_t>(rank.id()), kLarge);
    std::vector<uint8_t> got(kLarge);
    Pending recv = agent->irecv(partner, tag, got.data(), kLarge);
    Pending send = agent->isend(partner, tag, sent.data(), kLarge);
    const std::string word = fmt::format("autonomous/{}/{}", round, std::min(rank.id(), partner));
    rank.publish(fmt::format("{}/submitted/{}", word, rank.id()), "");
    rank.await_value(fmt::format("{}/submitted/{}", word, partner));
    if (rank.id() % 2 == round) {
      rank.step("waiting for large messages while the other rank makes no calls");
      must_be(rank, recv.wait(rank.hang_limit(kEndLimit)), BP_OK, "a recv from a rank that makes no more calls");
      must_be(rank, send.wait(rank.hang_limit(kEndLimit)), BP_OK, "a send to a rank that makes no more calls");
      rank.publish(word, "done");
    } else {
      rank.step("making no calls while large messages are to come and to go");
      rank.await_value(word);
    }
    rank.require_ok(recv.finish(rank.hang_limit(kEndLimit)), "the recv");
    rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "the send");
    require_bytes(rank, got, tag * 64 + static_cast<uint64_t>(partner), "a large message");
  }
}

void progress_of_all(Rank& rank) {
  const auto agent = rank.open();
  const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()), kLarge);
  std::vector<uint8_t> got(kLarge);
  Pending send = agent->isend(rank.next(), 1, sent.data(), kLarge);
  Pending recv = agent->irecv(rank.previous(), 1, got.data(), kLarge);
  rank.step("waiting for a large recv while a large send without a waiter is in flight");
  must_be(rank, recv.wait(rank.hang_limit(kEndLimit)), BP_OK, "work_wait for the recv alone");
  recv.release();
  require_bytes(rank, got, static_cast<uint64_t>(rank.previous()), "the large message");
  rank.barrier();  // every message has been received, so the sends must end
  must_be(rank, send.wait(rank.hang_limit(kEndLimit)), BP_OK, "work_wait for the send, later,");
  send.release();
}

void sync_equals_async(Rank& rank) {
  const auto agent = rank.open();
  for (const bool sync : {false, true}) {
    for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{2000}}) {
      const std::string how = sync ? "with BP_OP_SYNC" : "without BP_OP_SYNC";
      rank.step(fmt::format("receiving {} bytes {}", size, how));
      const std::vector<uint8_t> sent = bytes_of(size + static_cast<uint64_t>(rank.id()), size);
      std::vector<uint8_t> got(size + 5);
      bp_result result = make_result();
      bp_op recv = recv_op(rank.previous(), 1, got.data(), got.size(), &result);
      recv.timeout_ns = rank.hang_limit(kEndLimit);
      if (sync) recv.flags = BP_OP_SYNC;
      Pending send = agent->isend(rank.next(), 1, sent.data(), size);
      rank.require_ok(agent->run(recv), "a recv " + how);
      rank.require(result.bytes == size && result.source == rank.previous(),
                   fmt::format("a message of {} bytes from rank {} {}", size, rank.previous(), how),
                   fmt::format("{} bytes from rank {}", result.bytes, result.source));
      got.resize(size);
      require_bytes(rank, got, size + static_cast<uint64_t>(rank.previous()), "a message received " + how);
      rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "the send");

      rank.step(fmt::format("sending {} bytes {}", size, how));
      got.resize(size + 5);
      Pending receiving = agent->irecv(rank.previous(), 2, got.data(), got.size());
      bp_op sending = send_op(rank.next(), 2, sent.data(), size);
      sending.timeout_ns = rank.hang_limit(kEndLimit);
      if (sync) sending.flags = BP_OP_SYNC;
      rank.require_ok(agent->run(sending), "a send " + how);
      rank.require_ok(receiving.finish(rank.hang_limit(kEndLimit)), "the recv of a message that was sent " + how);
      got.resize(size);
      require_bytes(rank, got, size + static_cast<uint64_t>(rank.previous()), "a message sent " + how);
    }
  }
}

}  // namespace

std::vector<Case> async_cases() {
  const Needs two = {.ranks = 2};
  return {
      Case("test-is-monotonic", "work_test returns BP_AGAIN until the end, then always the final status, in any thread",
           test_is_monotonic),
      Case("wait-twice", "waiting again returns the same status", wait_twice),
      Case("wait-after-error", "a failed work reports its failure on every call", wait_after_error),
      Case("short-waits", "work_wait with a timeout of 0 or little returns BP_AGAIN, and the operation continues",
           short_waits),
      Case("wait-beside-submit", "one thread may wait while another one submits", wait_beside_submit,
           {.flags = BP_BACKEND_TAGS}),
      Case("submit-at-the-end", "a thread may submit after an operation has ended and before it is released",
           submit_at_the_end),
      Case("waits-in-several-threads", "several threads may wait for works of one group", waits_in_several_threads,
           {.flags = BP_BACKEND_TAGS}),
      Case("autonomous-progress", "with BP_BACKEND_AUTONOMOUS operations end without calls", autonomous,
           {.flags = BP_BACKEND_AUTONOMOUS, .ranks = 2}),
      Case("progress-of-all", "operations progress while the caller waits for another one of the group",
           progress_of_all, two),
      Case("sync-equals-async", "BP_OP_SYNC changes only who waits", sync_equals_async),
  };
}

}  // namespace backplane::conformance
