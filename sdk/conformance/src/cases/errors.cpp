// SPDX-License-Identifier: Apache-2.0
//
// The content of error reports: status, peer, native code and text.
#include <algorithm>
#include <array>
#include <cstring>

#include "errors_support.hpp"
#include "groups.hpp"

namespace backplane::conformance {
namespace {

bool same(const Outcome& left, const Outcome& right) {
  return left.status == right.status && left.error.peer_rank == right.error.peer_rank &&
         left.error.native_code == right.error.native_code &&
         std::strncmp(left.error.text, right.error.text, BP_ERROR_TEXT_SIZE) == 0;
}

std::string in_full(const Outcome& outcome) {
  return fmt::format("{} (peer {}, native code {})", outcome.text(), outcome.error.peer_rank,
                     outcome.error.native_code);
}

void reports(Rank& rank) {
  for (const Failed& failed : provoke(rank, "main")) check_report(rank, failed.outcome, failed.what);
}

void statuses(Rank& rank) {
  for (const Failed& failed : provoke(rank, "main")) {
    rank.check(failed.outcome.status == failed.status,
               fmt::format("{} ends with {}", failed.what, status_name(failed.status)), failed.outcome.text());
  }
}

// Queries a failed work in every way, also after other failures.
void stable(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> small(8);
  const std::vector<uint8_t> large(100, 1);
  rank.step("asking a failed operation again and again");
  Pending too_long = agent->irecv(rank.previous(), 1, small.data(), small.size());
  rank.barrier();
  Pending send = agent->isend(rank.next(), 1, large.data(), large.size());
  const Outcome first = too_long.wait(rank.hang_limit(kEndLimit));
  rank.require_ok(send.finish(rank.hang_limit(kEndLimit)), "the send");
  Pending aborted = agent->submit(recv_op(rank.id(), kSilentTag, small.data(), small.size()));
  rank.barrier();
  agent->abort(BP_RESOURCE, -1, "the cause of the abort");
  const Outcome second = aborted.wait(rank.hang_limit(kEndLimit));
  const Outcome third = agent->isend(rank.id(), 1, large.data(), 1).submitted();
  for (int i = 0; i < 30; ++i) {
    for (auto [pending, said] : {std::pair{&too_long, &first}, std::pair{&aborted, &second}}) {
      const Outcome again = i % 2 == 0 ? pending->test() : pending->wait(kMillisecond);
      rank.require(same(again, *said), "the same report each time: " + in_full(*said), in_full(again));
    }
    const Outcome again = agent->isend(rank.id(), 1, large.data(), 1).submitted();
    rank.require(same(again, third), "the same report of submit after abort each time: " + in_full(third),
                 in_full(again));
  }
  too_long.release();
  aborted.release();
  rank.barrier();
}

void null_report(Rank& rank) {
  const auto agent = rank.open();
  const bp_process_group_api& api = agent->api();
  std::vector<uint8_t> small(8);
  const std::vector<uint8_t> large(100, 1);
  rank.step("submitting, testing and waiting with err = NULL");
  bp_op recv = recv_op(rank.previous(), 1, small.data(), small.size());
  bp_op send = send_op(rank.next(), 1, large.data(), large.size());
  const auto recv_twin = mirror(rank, agent->mirrors(), &recv);
  const auto send_twin = mirror(rank, agent->mirrors(), &send);
  bp_work* receiving = nullptr;
  bp_work* sending = nullptr;
  rank.require(api.submit(agent->self(), &recv, &receiving, nullptr) == BP_OK, "submit of a recv succeeds",
               "it failed");
  rank.barrier();
  rank.require(api.submit(agent->self(), &send, &sending, nullptr) == BP_OK, "submit of a send succeeds", "it failed");
  if (receiving != nullptr) {
    const int32_t ended = api.work_wait(agent->self(), receiving, rank.hang_limit(kEndLimit), nullptr);
    rank.require(ended == BP_INVALID, "work_wait for a recv whose message is too long ends with BP_INVALID",
                 status_name(ended));
    const int32_t again = api.work_test(agent->self(), receiving, nullptr);
    rank.check(again == BP_INVALID, "work_test also returns BP_INVALID", status_name(again));
    api.work_release(agent->self(), receiving);
  }
  if (sending != nullptr) {
    const int32_t ended = api.work_wait(agent->self(), sending, rank.hang_limit(kEndLimit), nullptr);
    rank.require(ended == BP_OK, "work_wait for the send succeeds", status_name(ended));
    api.work_release(agent->self(), sending);
  }
  rank.barrier();
  agent->abort(BP_RESOURCE, -1, "the cause");
  bp_work* refused = nullptr;
  const int32_t status = api.submit(agent->self(), &send, &refused, nullptr);
  rank.check(status == BP_RESOURCE, "submit after abort fails with BP_RESOURCE, the cause's status",
             status_name(status));
  rank.barrier();
}

void cause_is_kept(Rank& rank) {
  const std::string words = "rank 1 of another group said \xC3\xBC\xE2\x82\xAC, code 42";
  bp_error why;
  bp_error_init(&why);
  bp_error_set(&why, BP_INTERNAL, 42, rank.size() - 1, words.c_str());
  const auto agent = rank.open();
  std::vector<uint8_t> memory(100);
  Pending pending = agent->submit(recv_op(rank.id(), kSilentTag, memory.data(), memory.size()));
  rank.barrier();
  rank.step("asking for the cause of an abort");
  agent->host().request_abort();
  rank.world().mark_failed();
  agent->api().abort(agent->self(), &why);
  std::memset(why.text, 'x', sizeof why.text);  // it was valid during the call
  why.text[5] = '\0';
  const Outcome flying = pending.finish(rank.hang_limit(kEndLimit));
  const Outcome later = agent->isend(rank.id(), 1, memory.data(), 1).submitted();
  for (const auto& [outcome, what] :
       {std::pair{flying, "an operation in flight"}, std::pair{later, "submit after abort"}}) {
    check_report(rank, outcome, what);
    rank.check(outcome.status == BP_INTERNAL, fmt::format("{} fails with the status of the cause, BP_INTERNAL", what),
               outcome.text());
    rank.check(outcome.text().find(words) != std::string::npos,
               fmt::format("{} tells the text of the cause: {}", what, words), outcome.text());
    rank.check(outcome.error.native_code == 42, fmt::format("{} keeps the native code of the cause, 42", what),
               in_full(outcome));
    rank.check(outcome.error.peer_rank == rank.size() - 1,
               fmt::format("{} names the rank of the cause, {}", what, rank.size() - 1), in_full(outcome));
  }
  rank.barrier();
}

// A text of two-byte characters that fills the report: any prefix of the backend truncates it.
void long_cause(Rank& rank) {
  for (int odd = 0; odd < 2; ++odd) {
    std::string words(static_cast<size_t>(odd), 'a');
    while (words.size() + 2 < BP_ERROR_TEXT_SIZE) words += "\xC3\xBC";
    const auto agent = rank.open(in_space(fmt::format("long {}", odd)));
    std::vector<uint8_t> memory(100);
    Pending pending = agent->submit(recv_op(rank.id(), kSilentTag, memory.data(), memory.size()));
    rank.barrier();
    agent->abort(BP_INTERNAL, -1, words);
    const Outcome flying = pending.finish(rank.hang_limit(kEndLimit));
    const Outcome later = agent->isend(rank.id(), 1, memory.data(), 1).submitted();
    for (const auto& [outcome, what] :
         {std::pair{flying, "an operation in flight"}, std::pair{later, "submit after abort"}}) {
      check_report(rank, outcome, what);
      rank.check(outcome.text().find(words.substr(0, 500)) != std::string::npos,
                 fmt::format("{} tells at least the first 500 bytes of a long cause", what), outcome.text());
    }
    rank.barrier();
  }
}

// All ranks abort with the same cause, as in the core; later errors must name the same rank.
void same_culprit(Rank& rank) {
  const int32_t culprit = static_cast<int32_t>(rank.shared_random()() % static_cast<uint64_t>(rank.size()));
  const auto agent = rank.open();
  ring(rank, *agent, "before abort", 1);
  rank.barrier();
  rank.step("aborting on all ranks");
  agent->abort(BP_PEER_LOST, culprit, fmt::format("rank {} is the culprit", culprit));
  std::vector<uint8_t> memory(100);
  for (int32_t peer = 0; peer < rank.size(); ++peer) {
    for (int attempt = 0; attempt < 5; ++attempt) {
      const Outcome sent = agent->isend(peer, 1, memory.data(), 10).submitted();
      const Outcome received = agent->irecv(peer, 1, memory.data(), 10).submitted();
      for (const Outcome& outcome : {sent, received}) {
        rank.require(outcome.status == BP_PEER_LOST && outcome.error.peer_rank == culprit,
                     fmt::format("BP_PEER_LOST naming rank {}, also for messages with rank {}", culprit, peer),
                     in_full(outcome));
      }
    }
  }
  rank.barrier();
}

// The last rank destroys its group while the others wait for it. Skipped for backends that cannot detect that.
void names_the_lost(Rank& rank) {
  const int32_t lost = rank.size() - 1;
  const auto agent = rank.open();
  std::vector<uint8_t> memory(100);
  ring(rank, *agent, "before one rank leaves", 1);
  if (rank.id() == lost) {
    rank.barrier();
    close_in_time(rank, *agent, "while others wait for this rank");
    rank.barrier();
    return;
  }
  Pending recv = agent->irecv(lost, 2, memory.data(), memory.size());
  rank.barrier();
  rank.step("waiting for a rank that destroys its group");
  Outcome outcome = recv.wait(rank.scaled(3 * kSecond));
  rank.barrier();
  if (outcome.status == BP_AGAIN) {
    std::vector<Pending> rest;
    rest.push_back(std::move(recv));
    abandon(rank, *agent, rest);
    return;
  }
  rank.check(outcome.status == BP_PEER_LOST, "a recv from a rank that destroyed its group fails with BP_PEER_LOST",
             outcome.text());
  rank.check(outcome.error.peer_rank == lost, fmt::format("bp_error.peer_rank is that rank, {}", lost),
             in_full(outcome));
  check_report(rank, outcome, "a recv from a rank that has left");
  recv.release();
}

// Level full: a matter of quality.
void names_the_operation(Rank& rank) {
  const auto agent = rank.open();
  std::vector<uint8_t> small(8);
  rank.step("letting a recv time out");
  bp_op op = recv_op(rank.next(), kSilentTag, small.data(), small.size());
  op.flags = BP_OP_SYNC;
  op.timeout_ns = 10 * kMillisecond;
  Pending pending = agent->submit(op);
  if (pending.in_flight()) {
    static_cast<void>(pending.finish(0));
    rank.skip("this backend leaves deadlines to the core");
  }
  const std::string text = pending.submitted().text();
  rank.check(text.find("recv") != std::string::npos || text.find("receive") != std::string::npos,
             "the text of a recv that timed out names the operation", text);
  rank.check(text.find(std::to_string(rank.next())) != std::string::npos,
             fmt::format("the text of a recv from rank {} that timed out names that rank", rank.next()), text);
  rank.barrier();
}

}  // namespace

std::vector<Case> errors_cases() {
  const Needs two = {.ranks = 2};
  return {
      Case("reports", "a report is one line of UTF-8 with the status that was returned", reports),
      Case("statuses", "each failure has the documented status", statuses),
      Case("stable", "a failure is reported in the same words each time", stable),
      Case("null-report", "err may be NULL everywhere", null_report),
      Case("cause", "after abort errors carry the status, text, rank and native code of the cause", cause_is_kept),
      Case("long-text", "a text that is too long is truncated between characters", long_cause),
      Case("same-culprit", "after abort every error on every rank names the rank of the cause", same_culprit, two),
      Case("names-the-lost", "BP_PEER_LOST names the lost rank", names_the_lost, two),
      Case("names-the-operation", "a timeout's text names the operation and the peer", names_the_operation, two,
           {.level = Level::kFull}),
  };
}

}  // namespace backplane::conformance
