// SPDX-License-Identifier: Apache-2.0
//
// Completion notices ("backplane.notify/1").
#include <algorithm>
#include <deque>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

// One notice.
struct Notice {
  std::atomic<int> count = 0;
  static void ended(void* to) { ++static_cast<Notice*>(to)->count; }
};

class Notices {
 public:
  Notices(Rank& rank, Agent& agent)
      : rank_(rank), api_(static_cast<const bp_notify_api*>(agent.api().extension(agent.self(), BP_EXT_NOTIFY))) {
    if (api_ == nullptr) rank.skip(fmt::format("the backend gives no notice of ends ({})", BP_EXT_NOTIFY));
    rank.require(BP_HAS(api_, on_end) && api_->on_end != nullptr,
                 fmt::format("a table of {} with on_end", BP_EXT_NOTIFY), "one without");
  }

  // Null: this work has no notice, or has ended.
  Notice* of(Pending& pending) {
    if (!pending.in_flight()) return nullptr;
    Notice& notice = notices_.emplace_back();
    Outcome outcome;
    outcome.status = api_->on_end(api_->ctx, pending.work(), Notice::ended, &notice, &outcome.error);
    if (outcome.ok()) return &notice;
    rank_.require(outcome.status == BP_UNSUPPORTED, "BP_OK or BP_UNSUPPORTED of on_end", outcome.text());
    rank_.require(notice.count == 0, "no notice where on_end says BP_UNSUPPORTED", "one");
    return nullptr;
  }
  // Waits for all notices without calling the backend.
  void await(const std::string& what) {
    const auto all = [this] {
      return std::all_of(notices_.begin(), notices_.end(), [](const Notice& each) { return each.count > 0; });
    };
    rank_.require(poll_until(rank_.hang_limit(kEndLimit), all), fmt::format("a notice that {}", what), "none came");
    expect_once();
  }
  void expect_once() const {
    for (const Notice& each : notices_)
      rank_.require(each.count <= 1, "one notice of an end", std::to_string(each.count.load()));
  }
  // A work without a notice must not change the notice's memory.
  void require_some(const Notice* notice) const {
    if (notice == nullptr) rank_.skip("operations of this kind have no notice here");
  }

 private:
  Rank& rank_;
  const bp_notify_api* const api_;
  std::deque<Notice>& notices_ =
      *new std::deque<Notice>;  // never freed: a work that was left behind may still write to it
};

void notify_once(Rank& rank) {
  const auto agent = rank.open();
  Notices notices(rank, *agent);
  for (const uint64_t size : {UINT64_C(100), kLarge}) {
    const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(rank.id()) + 1, size);
    std::vector<uint8_t> got(size);
    std::vector<uint8_t> later(size);
    rank.step(fmt::format("waiting for the notice of a recv of {} bytes", size));
    Pending recv = agent->irecv(rank.previous(), 1, got.data(), size);
    Pending second = agent->irecv(rank.previous(), 2, later.data(), size);
    const Notice* const notice = notices.of(recv);
    notices.require_some(notice);
    rank.require(notice->count == 0, "no notice before the message is sent", "one");
    rank.barrier();
    std::vector<Pending> sends;
    for (const uint64_t tag : {1, 2}) sends.push_back(agent->isend(rank.next(), tag, sent.data(), size));
    for (Pending& send : sends) notices.of(send);
    notices.await("messages have arrived and were sent");
    const Outcome outcome = recv.test();
    rank.require_ok(outcome, "work_test after the notice");
    require_bytes(rank, got, static_cast<uint64_t>(rank.previous()) + 1, "the message, at the notice");
    rank.require_ok(second.wait(rank.hang_limit(kEndLimit)), "a recv");
    if (const Notice* const late = notices.of(second); late != nullptr) {
      rank.require(late->count == 1, "one notice of a terminal operation, before on_end returns",
                   std::to_string(late->count.load()));
    }
    for (Pending& send : sends) rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "a send");
    recv.release();
    second.release();
  }
  ring(rank, *agent, "after notices", 3);
  rank.barrier();
  agent->close();
  notices.expect_once();
}

// Operations that end without success: cancelled and aborted.
void notify_failures(Rank& rank) {
  const auto agent = rank.open();
  Notices notices(rank, *agent);
  std::vector<char> memory(64);
  const std::vector<char> large(kLarge);
  {
    rank.step("cancelling a recv that has a notice");
    Pending recv = agent->submit(unmatched_recv(*agent, memory.data(), 16));
    const Notice* const notice = notices.of(recv);
    notices.require_some(notice);
    recv.cancel();
    const Outcome outcome = recv.wait(kSecond / 5);
    if (outcome.status != BP_AGAIN) {
      recv.release();
      rank.require(notice->count == 1, "a notice of a cancelled recv before work_release returns",
                   std::to_string(notice->count.load()));
    } else {
      rank.require(notice->count == 0, "no notice while a recv is in flight", "one");
    }
    rank.barrier();
    std::vector<Pending> pending;
    pending.push_back(std::move(recv));
    pending.push_back(agent->submit(unmatched_recv(*agent, memory.data() + 16, 16)));
    pending.push_back(agent->isend(rank.next(), kSilentTag + 1, large.data(), large.size()));
    bp_op meeting;
    int32_t one = 1;
    // The last rank does not join.
    if (rank.id() != rank.size() - 1 && make_collective(rank, meeting, &one)) pending.push_back(agent->submit(meeting));
    for (size_t i = 1; i < pending.size(); ++i) notices.of(pending[i]);
    rank.barrier();
    rank.step("waiting for notices of operations that were aborted");
    agent->abort(BP_CANCELLED, -1, "the case wants it");
    notices.await("operations were aborted");
    for (Pending& each : pending) {
      if (!each.in_flight()) continue;
      rank.require(each.test().status != BP_AGAIN, "a terminal operation after its notice", "BP_AGAIN");
      each.release();
    }
  }
  agent->close();
  notices.expect_once();
}

// Operations of several kinds and sizes progress without calls by the program.
void notify_progress(Rank& rank) {
  const auto agent = rank.open();
  Notices notices(rank, *agent);
  constexpr uint64_t kMessages = 4;
  std::vector<std::vector<uint8_t>> sent;
  std::vector<std::vector<uint8_t>> got(kMessages);
  std::vector<Pending> pending;
  for (uint64_t i = 0; i < kMessages; ++i) {
    const uint64_t size = i % 2 == 0 ? kLarge : 1000;
    sent.push_back(bytes_of(static_cast<uint64_t>(rank.id()) * 10 + i, size));
    got[i].resize(size);
    pending.push_back(agent->irecv(rank.previous(), i, got[i].data(), size));
  }
  for (uint64_t i = kMessages; i-- > 0;) {
    pending.push_back(agent->isend(rank.next(), i, sent[i].data(), sent[i].size()));
  }
  bp_op meeting;
  int32_t one = 1;
  if (make_collective(rank, meeting, &one)) pending.push_back(agent->submit(meeting));
  rank.step("waiting for notices of several operations without a call");
  const Notice* some = nullptr;
  std::vector<bool> noticed;
  for (Pending& each : pending) {
    const Notice* const notice = notices.of(each);
    noticed.push_back(notice != nullptr || !each.in_flight());
    if (notice != nullptr) some = notice;
  }
  notices.require_some(some);
  notices.await("several operations have ended, without calls");
  for (size_t i = 0; i < pending.size(); ++i) {
    const Outcome outcome = noticed[i] ? pending[i].test() : pending[i].wait(rank.hang_limit(kEndLimit));
    rank.require_ok(outcome, fmt::format("operation {} after its notice", i));
    pending[i].release();
  }
  for (uint64_t i = 0; i < kMessages; ++i) {
    require_bytes(rank, got[i], static_cast<uint64_t>(rank.previous()) * 10 + i, fmt::format("message {}", i));
  }
  rank.barrier();
  agent->close();
  notices.expect_once();
}

}  // namespace

std::vector<Case> async_notify_cases() {
  return {
      Case("notify-once", "each end is notified once, not before the end, and at once if the operation is terminal",
           notify_once),
      Case("notify-failures", "cancelled and aborted operations are notified", notify_failures, {.ranks = 2}),
      Case("notify-progress", "operations with notices progress without calls", notify_progress),
  };
}

}  // namespace backplane::conformance
