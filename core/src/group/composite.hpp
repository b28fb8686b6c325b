// SPDX-License-Identifier: Apache-2.0
//
// The agent of a composite such as shm+gloo: one part connects the ranks of this host, the other one connects all ranks
// and carries the messages between hosts. A message takes the part of its peer. Collectives are schedules by topology
// (schedule/hierarchy.hpp), because no part alone could perform them.
//
// A part that would have one rank is left out: between hosts if all ranks are on one host, inside if this rank is the
// only one of its host. If all ranks have one part alone, because they share a host or each has its own, the composite
// is the agent of that part, with its native collectives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backplane/abi/ext/interrupt.h"
#include "group/any_source.hpp"
#include "group/composite_part.hpp"
#include "schedule/topology.hpp"

namespace backplane::core {

class Composite final : public AgentInstance {
 public:
  // Learns from the store which ranks share a host, and starts the parts. Throws core::Error.
  Composite(const Member& member, const std::shared_ptr<const BackendOptions>& options, const AgentConfig& config);
  ~Composite() override;

  const Member& member() const override { return member_; }
  const bp_agent& agent() const override { return agent_; }
  const bp_agent& unisolated_agent() const override { return own_; }
  bool hung() const override;
  void request_abort(const std::string& why) override;
  const Topology* topology() const override { return topology_.is_flat() ? nullptr : &topology_; }

 private:
  struct Calls;  // the functions of the tables
  struct Work;
  struct Message;  // a probed one

  void start(const BackendOptions& options, const AgentConfig& config);
  void offer_extensions();
  CompositePart& part_of(int32_t peer) const;
  const void* forwarded(const char* id) const;

  int32_t submit(const bp_op& op, bp_work** work, bp_error* err);
  int32_t pass(CompositePart& part, const bp_op& op, bp_message* message, bp_work** work, bp_error* err);
  int32_t receive_any(const bp_op& op, CompositePart* only, bp_work** work, bp_error* err);
  int32_t wait(Work& work, int64_t timeout_ns, bp_error* err);
  int32_t probe(int32_t peer, uint64_t tag, bp_message** message, bp_result* result, bp_error* err);

  const Member& member_;
  Topology topology_;
  std::unique_ptr<CompositePart> inside_;   // NULL: this rank is alone on its host
  std::unique_ptr<CompositePart> between_;  // NULL: all ranks are on one host
  std::unique_ptr<AnySource> any_source_;   // NULL unless there are two parts, of which the first can be probed
  bp_agent own_ = {};                       // the table of this object
  bp_agent agent_ = {};                     // own_, or the agent of the part that connects all ranks alone
  bp_probe_api probe_ = {};
  bp_notify_api notify_ = {};
  bp_interrupt_api interrupt_ = {};
};

}  // namespace backplane::core
