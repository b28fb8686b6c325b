// SPDX-License-Identifier: Apache-2.0
//
// "backplane.probe/1" as its cases use it.
#pragma once

#include <string>

#include "async_support.hpp"
#include "p2p_traffic.hpp"

namespace backplane::conformance {

constexpr uint64_t kRendezvous = UINT64_C(2) << 20;  // larger than eager limits

struct Taken {
  bp_message* message = nullptr;
  bp_result result = make_result();
};

class Prober {
 public:
  Prober(Rank& rank, Agent& agent)
      : rank_(rank),
        agent_(agent),
        api_(static_cast<const bp_probe_api*>(agent.api().extension(agent.self(), BP_EXT_PROBE))) {
    if (api_ == nullptr) rank.skip(fmt::format("the backend takes no messages by probe ({})", BP_EXT_PROBE));
    rank.require(BP_HAS(api_, drop) && api_->probe != nullptr && api_->drop != nullptr,
                 fmt::format("a table of {} with probe and drop", BP_EXT_PROBE), "one without");
  }

  // Probes once. Any thread.
  Outcome look(int32_t peer, uint64_t tag, Taken& taken) const {
    Outcome outcome;
    outcome.status =
        api_->probe(api_->ctx, peer, fit_tag(agent_.backend(), tag), &taken.message, &taken.result, &outcome.error);
    return outcome;
  }
  // Probes until a message has arrived. Leaves the body if none does.
  Taken take(int32_t peer, uint64_t tag, const std::string& what) const {
    Taken taken;
    Outcome outcome;
    poll_until(rank_.hang_limit(kEndLimit), [&] { return (outcome = look(peer, tag, taken)).status != BP_AGAIN; });
    rank_.require_ok(outcome, "a probe of " + what);
    rank_.require(taken.message != nullptr, "a message where probe says BP_OK", "NULL");
    return taken;
  }
  void expect_none(int32_t peer, uint64_t tag, const std::string& when) const {
    Taken taken;
    const Outcome outcome = look(peer, tag, taken);
    rank_.require(outcome.status == BP_AGAIN, "BP_AGAIN of a probe " + when, outcome.text());
  }
  void expect_result(const bp_result& result, int32_t source, uint64_t tag, uint64_t bytes,
                     const std::string& what) const {
    const uint64_t fitted = fit_tag(agent_.backend(), tag);
    rank_.require(result.source == source && result.bytes == bytes && result.tag == fitted,
                  fmt::format("{} reports source {}, tag {}, {} bytes", what, source, fitted, bytes),
                  fmt::format("source {}, tag {}, {} bytes", result.source, result.tag, result.bytes));
  }
  Pending receive(const Taken& taken, void* data, uint64_t bytes, bp_result* result = nullptr) const {
    bp_op op = recv_op(0, 0, data, bytes, result);
    op.message = taken.message;
    op.timeout_ns = rank_.hang_limit(kWaitLimit);
    return agent_.submit(op);
  }
  void drop(const Taken& taken) const { api_->drop(api_->ctx, taken.message); }

 private:
  Rank& rank_;
  Agent& agent_;
  const bp_probe_api* const api_;
};

// A message from the previous rank, received through the probed message.
inline void expect_word(Rank& rank, VerifiedAgent& verified, const Prober& prober, const Taken& taken, uint64_t word) {
  uint64_t got = 0;
  Pending recv = prober.receive(taken, &got, sizeof got);
  verified.finish(recv, "a recv of a message that was taken");
  rank.require(got == word, fmt::format("message {}", word), fmt::format("message {}", got));
}

}  // namespace backplane::conformance
