// SPDX-License-Identifier: Apache-2.0
//
// Abort ends all operations of a rank. Peers may notice, so in most cases one rank aborts while the others have nothing
// in flight.
#include <algorithm>

#include "async_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

constexpr const char* kCause = "rank 77 of the cause was lost";

// The rank that aborts in this run; the same on all ranks.
bool aborts(Rank& rank) {
  return static_cast<int32_t>(rank.shared_random()() % static_cast<uint64_t>(rank.size())) == rank.id();
}

// The operation ended with the cause's status and text.
void expect_cause(Rank& rank, const Outcome& outcome, int32_t status, const std::string& what) {
  rank.check(outcome.status == status,
             fmt::format("{} ends with {}, the status of the cause", what, status_name(status)), outcome.text());
  rank.check(outcome.text().find(kCause) != std::string::npos, fmt::format("{} says why: \"{}{}", what, kCause, '"'),
             outcome.text());
}

void expect_in_time(Rank& rank, Nanoseconds took, const std::string& what) {
  rank.check(took <= rank.scaled(kAbortBound), what + " within 500 ms of abort",
             fmt::format("it took {} ms", took / kMillisecond));
}

// A thread blocks in `op`; abort comes from this one.
void abort_blocked(Rank& rank, Agent& agent, const bp_op& op, const std::string& what, Blocked::How how) {
  rank.step(fmt::format("{} blocks in {}", what, name_of(how)));
  const Blocked blocked(agent, op, how);
  if (op.kind == BP_SEND && blocked.ended()) return;  // buffered
  rank.require(!blocked.ended(), what + " waits", blocked.outcome().text());
  rank.step(fmt::format("aborting while {} blocks in {}", what, name_of(how)));
  const Nanoseconds begin = now();
  agent.abort(BP_PEER_LOST, 0, kCause);
  expect_in_time(rank, now() - begin, "abort returns");
  rank.require(blocked.await(rank.scaled(kEndLimit)), fmt::format("abort ends {} in {}", what, name_of(how)),
               "it has not returned");
  expect_in_time(rank, blocked.ended_at() - begin, fmt::format("{} in {} ends", what, name_of(how)));
  if (op.kind != BP_SEND || !blocked.outcome().ok()) {
    expect_cause(rank, blocked.outcome(), BP_PEER_LOST, fmt::format("{} in {}", what, name_of(how)));
  }
}

void blocked_recv(Rank& rank) {
  for (const auto how : {Blocked::How::kInSubmit, Blocked::How::kInWait}) {
    const auto agent = rank.open(in_space(fmt::format("recv {}", static_cast<int>(how))));
    std::vector<uint8_t> memory(100);
    rank.barrier();
    if (aborts(rank)) abort_blocked(rank, *agent, unmatched_recv(*agent, memory.data(), memory.size()), "a recv", how);
    rank.barrier();
  }
}

void blocked_any_source(Rank& rank) {
  for (const auto how : {Blocked::How::kInSubmit, Blocked::How::kInWait}) {
    const auto agent = rank.open(in_space(fmt::format("any source {}", static_cast<int>(how))));
    std::vector<uint8_t> memory(100);
    rank.barrier();
    bp_op op = recv_op(BP_ANY_SOURCE, kSilentTag, memory.data(), memory.size());
    if (aborts(rank)) abort_blocked(rank, *agent, op, "a recv from BP_ANY_SOURCE", how);
    rank.barrier();
  }
}

void blocked_send(Rank& rank) {
  for (const auto how : {Blocked::How::kInSubmit, Blocked::How::kInWait}) {
    const auto agent = rank.open(in_space(fmt::format("send {}", static_cast<int>(how))));
    const std::vector<uint8_t> large(kLarge, 1);
    rank.barrier();
    const bp_op op = send_op(rank.next(), kSilentTag, large.data(), large.size());
    if (aborts(rank)) abort_blocked(rank, *agent, op, "a send", how);
    rank.barrier();
  }
}

// All ranks but rank 0 block in a collective. The last rank aborts first, then the others.
void blocked_collective(Rank& rank) {
  for (const auto how : {Blocked::How::kInSubmit, Blocked::How::kInWait}) {
    const auto agent = rank.open(in_space(fmt::format("collective {}", static_cast<int>(how))));
    int32_t memory = 1;
    bp_op op;
    if (!make_collective(rank, op, &memory)) rank.skip("no native collective for which all ranks have to come");
    const std::string word = fmt::format("first/{}", static_cast<int>(how));
    if (rank.id() == rank.size() - 1) {
      rank.barrier();
      abort_blocked(rank, *agent, op, "a collective", how);
      rank.publish(word, "aborted");
    } else if (rank.id() != 0) {
      rank.step(fmt::format("blocking in a collective in {}", name_of(how)));
      const Blocked blocked(*agent, op, how);
      rank.barrier();
      rank.await_value(word);
      rank.step("aborting after another rank has");
      const Nanoseconds begin = now();
      agent->abort(BP_PEER_LOST, 0, kCause);
      rank.require(blocked.await(rank.scaled(kEndLimit)), "abort ends a collective", "it has not returned");
      expect_in_time(rank, blocked.ended_at() - begin, "a collective ends");
      rank.check(blocked.outcome().status != BP_OK && blocked.outcome().status != BP_AGAIN, "a collective that failed",
                 blocked.outcome().text());
    } else {
      rank.barrier();
    }
    rank.barrier();
  }
}

// Rank 0 does not join. If the others wait for it in init, host.abort_requested must end their init.
void during_init(Rank& rank) {
  if (rank.id() != 0) {
    const LogSink quiet = [](uint32_t, const char*) {};
    Host host(rank.world(), "never complete", quiet);
    const OptionValues values(rank.backend(), rank.run().options);
    bp_options* options = nullptr;
    Outcome outcome;
    if (rank.backend().construct_options != nullptr) {
      const bp_options_request request = {sizeof request, values.count(), values.data(), 60 * kSecond, "env://"};
      outcome.status = rank.backend().construct_options(&rank.backend(), &request, &options, &outcome.error);
      rank.require_ok(outcome, "construct_options");
    }
    std::vector<int32_t> ranks(static_cast<size_t>(rank.size()));
    for (int32_t i = 0; i < rank.size(); ++i) ranks[static_cast<size_t>(i)] = i;
    bp_init init = {};
    init.struct_size = sizeof init;
    init.rank = rank.id();
    init.world_size = rank.size();
    init.device = -1;
    init.name = "never complete";
    init.host = host.table();
    init.options = options;
    init.values = values.data();
    init.value_count = values.count();
    init.kind = BP_KIND_PROCESS_GROUP;
    init.timeout_ns = BP_NO_TIMEOUT;
    init.global_ranks = ranks.data();
    bp_agent agent = {};
    agent.struct_size = sizeof agent;
    Nanoseconds ended = 0;
    rank.step("in init without rank 0");
    const TestThread starting([&] {
      outcome.status = rank.backend().init(&rank.backend(), &init, &agent, &outcome.error);
      ended = now();
    });
    starting.await(100 * kMillisecond);
    rank.step("in init without rank 0, abort requested");
    const Nanoseconds begin = now();
    host.request_abort();
    rank.require(starting.await(rank.scaled(kEndLimit)), "init gives up when abort_requested says so",
                 "it has not returned");
    expect_in_time(rank, ended - begin, "init without rank 0 ends");
    rank.check(outcome.ok() || outcome.status == BP_CANCELLED, "init gives up with BP_CANCELLED, or had not waited",
               outcome.text());
    if (outcome.ok()) static_cast<const bp_process_group_api*>(agent.api)->destroy(agent.self);
    if (options != nullptr && rank.backend().destroy_options != nullptr) {
      rank.backend().destroy_options(&rank.backend(), options);
    }
  }
  rank.barrier();
  const auto agent = rank.open(in_space("complete"));
  ring(rank, *agent, "in a group that was made after another init was given up", 1);
}

void many_pending(Rank& rank) {
  constexpr uint64_t kCount = 200;
  const auto agent = rank.open();
  std::vector<std::vector<uint8_t>> memory(kCount, std::vector<uint8_t>(64));
  rank.barrier();
  if (aborts(rank)) {
    std::vector<Pending> all;
    for (uint64_t i = 0; i < kCount; ++i) {
      bp_op op = unmatched_recv(*agent, memory[i].data(), memory[i].size());
      op.tag -= i;
      op.peer = static_cast<int32_t>(i % static_cast<uint64_t>(rank.size()));
      all.push_back(agent->submit(op));
      rank.require_ok(all.back().submitted(), fmt::format("submit of recv {}", i));
    }
    rank.step(fmt::format("aborting with {} operations in flight", kCount));
    const Nanoseconds begin = now();
    agent->abort(BP_PEER_LOST, 0, kCause);
    for (uint64_t i = 0; i < kCount; ++i) {
      const Outcome outcome = all[i].wait(rank.scaled(kEndLimit));
      rank.require(outcome.status == BP_PEER_LOST && outcome.text().find(kCause) != std::string::npos,
                   fmt::format("operation {} of {} in flight fails with the cause of the abort", i, kCount),
                   outcome.text());
    }
    expect_in_time(rank, now() - begin, "all operations end");
    std::shuffle(all.begin(), all.end(), rank.random());
    for (Pending& one : all) one.release();
    close_in_time(rank, *agent, "after an abort with many operations in flight");
  }
  rank.barrier();
}

// One thread submits continuously; abort comes at a random moment.
void beside_submits(Rank& rank) {
  const auto agent = rank.open();
  rank.barrier();
  if (aborts(rank)) {
    std::vector<Pending> all;
    std::vector<std::vector<uint8_t>> memory;
    Outcome refused;
    std::atomic<uint64_t> submitted = 0;
    rank.step("aborting while another thread submits");
    {
      const TestThread submitting([&] {
        for (uint64_t i = 0; i < 100'000 && refused.ok(); ++i) {
          memory.emplace_back(16);
          all.push_back(agent->submit(unmatched_recv(*agent, memory.back().data(), 16)));
          refused = all.back().submitted();
          submitted.fetch_add(1);
          if (i >= 2000) static_cast<void>(all.back().wait(kMillisecond));  // bounds the operations in flight
        }
      });
      poll_until(rank.scaled(kEndLimit), [&] { return submitted.load() > 100; });
      agent->abort(BP_PEER_LOST, 0, kCause);
      rank.require(submitting.await(rank.scaled(kEndLimit)), "submit fails after abort", "it has not returned");
    }
    expect_cause(rank, refused, BP_PEER_LOST, "submit after abort");
    for (Pending& one : all) {
      const Outcome outcome = one.wait(rank.scaled(kSecond));
      rank.require(outcome.status == BP_PEER_LOST, "each operation that was in flight fails with the cause's status",
                   outcome.text());
      one.release();
    }
  }
  rank.barrier();
}

}  // namespace

std::vector<Case> abort_cases() {
  return {
      Case("blocked-recv", "abort from another thread ends a blocked recv within 500 ms with its cause", blocked_recv),
      Case("blocked-any-source", "abort ends a blocked recv from BP_ANY_SOURCE within 500 ms with its cause",
           blocked_any_source, {.flags = BP_BACKEND_ANY_SOURCE}),
      Case("blocked-send", "abort ends a blocked send within 500 ms with its cause", blocked_send,
           {.flags = BP_BACKEND_TAGS}),
      Case("blocked-collective", "abort ends a blocked native collective within 500 ms with its cause",
           blocked_collective, {.ops = 0, .ranks = 2}),
      Case("during-init", "host.abort_requested ends a waiting init within 500 ms", during_init,
           {.without = BP_BACKEND_BLOCKING_INIT, .ranks = 2}),
      Case("many-pending", "abort ends all operations in flight, each with the cause", many_pending),
      Case("beside-submits", "abort may come while another thread submits", beside_submits),
  };
}

}  // namespace backplane::conformance
