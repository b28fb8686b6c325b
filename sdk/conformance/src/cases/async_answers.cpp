// SPDX-License-Identifier: Apache-2.0
//
// The answer of an operation that has ended: the same whenever it is asked for, for every kind of operation.
#include <memory>
#include <vector>

#include "../names.hpp"
#include "async_support.hpp"
#include "collectives_call.hpp"
#include "groups.hpp"

namespace backplane::conformance {

namespace {

constexpr int kAskedAgain = 40;

// Asks an operation that has ended again, by work_test and by work_wait, and releases it.
void ask_again(Rank& rank, Pending& pending, const Outcome& first, const std::string& what) {
  for (int i = 0; i < kAskedAgain; ++i) {
    const Outcome again = i % 2 == 0 ? pending.test() : pending.wait(i % 4 == 1 ? 0 : kMillisecond);
    rank.require(again.status == first.status && again.error.peer_rank == first.error.peer_rank,
                 fmt::format("{} of {} that has ended says again: {}", i % 2 == 0 ? "work_test" : "work_wait", what,
                             first.text()),
                 again.text());
  }
  pending.release();
}

// Operations of each kind: a recv, a send, and the native collectives.
class Kinds {
 public:
  explicit Kinds(Rank& rank) : rank_(rank), group_(rank, in_space("kinds")) {
    for (uint32_t op = 0; op < BP_OP_COUNT; ++op) {
      if (op == BP_SEND || op == BP_RECV || group_.native(op) == nullptr) continue;
      calls_.push_back(std::make_unique<Call>(usual_shape(*group_.native(op), 200), rank.id(), rank.size()));
    }
  }

  Agent& agent() { return group_.agent(); }
  void submit_collectives() {
    for (const auto& call : calls_) add(group_.submit(*call), op_name(call->op().kind));
  }
  void submit_recv(uint64_t tag) { add(agent().irecv(rank_.previous(), tag, got_.data(), got_.size()), "a recv"); }
  void submit_send(uint64_t tag, uint64_t size) { add(agent().isend(rank_.next(), tag, sent_.data(), size), "a send"); }
  // Waits for the end of all, then asks each again. `ok`: they must succeed.
  void check_answers(bool ok) {
    std::vector<Outcome> first;
    for (size_t i = 0; i < pending_.size(); ++i) {
      first.push_back(pending_[i].wait(rank_.hang_limit(kEndLimit)));
      const bool good = ok ? first[i].ok() : first[i].status != BP_AGAIN;
      rank_.require(good, names_[i] + (ok ? " succeeds" : " ends after abort"), first[i].text());
    }
    for (size_t i = 0; i < pending_.size(); ++i) {
      if (!pending_[i].in_flight()) continue;
      rank_.step("asking again how " + names_[i] + " has ended");
      ask_again(rank_, pending_[i], first[i], names_[i]);
    }
    pending_.clear();
    names_.clear();
  }

 private:
  void add(Pending pending, const std::string& name) {
    pending_.push_back(std::move(pending));
    names_.push_back(name);
  }

  Rank& rank_;
  std::vector<uint8_t> sent_ = std::vector<uint8_t>(kLarge);
  std::vector<uint8_t> got_ = std::vector<uint8_t>(100);
  Collectives group_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<Pending> pending_;
  std::vector<std::string> names_;
};

void answers_of_success(Rank& rank) {
  Kinds kinds(rank);
  rank.step("waiting for one operation of each kind");
  kinds.submit_recv(1);
  kinds.submit_send(1, 100);
  kinds.submit_collectives();
  kinds.check_answers(true);
  ring(rank, kinds.agent(), "after operations that were asked again", 2);
}

// The last rank takes no part, so that most operations of the others are in flight until the abort.
void answers_of_failure(Rank& rank) {
  Kinds kinds(rank);
  rank.step("submitting one operation of each kind without the last rank");
  if (rank.id() < rank.size() - 1) {
    kinds.submit_recv(kSilentTag);
    kinds.submit_send(kSilentTag - 1, kLarge);
    kinds.submit_collectives();
  }
  rank.barrier();
  rank.step("aborting the group");
  kinds.agent().abort(BP_CANCELLED, -1, "the harness aborts");
  kinds.check_answers(false);
  rank.barrier();
}

}  // namespace

std::vector<Case> async_answer_cases() {
  return {
      Case("answer-of-success", "an operation of any kind that has succeeded says so whenever it is asked",
           answers_of_success),
      Case("answer-of-failure",
           "an operation of any kind that has failed names the same status and rank whenever it is asked",
           answers_of_failure, {.ranks = 2}),
  };
}

}  // namespace backplane::conformance
