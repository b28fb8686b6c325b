// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives. MPI matches them, by its own tags and in the order of the calls (wire.hpp).
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "backplane/sdk/probe.hpp"
#include "operation.hpp"
#include "wire.hpp"

namespace backplane::mpi {

// With two communicators, 19 bits of MPI's tags are enough. Some libraries have no more than 20.
constexpr uint32_t kTagBits = 20;
constexpr int kMaxTag = (1 << (kTagBits - 1)) - 1;
constexpr uint64_t kInternal = BP_BIT(kTagBits - 1);

// What a receive or a probe matches.
struct Pattern {
  Pattern(const GroupState& group, int32_t from, uint64_t bp_tag)
      : is_internal(bp_tag != BP_ANY_TAG && (bp_tag & kInternal) != 0),
        comm(is_internal ? group.internal : group.user),
        peer(from == BP_ANY_SOURCE ? kAnySource : from),
        tag(bp_tag == BP_ANY_TAG ? kAnyTag : static_cast<int>(bp_tag & (kInternal - 1))) {}
  // The tag of a message that it has matched, as the program knows it.
  uint64_t tag_of(const Envelope& envelope) const {
    return static_cast<uint64_t>(envelope.tag) | (is_internal ? kInternal : 0);
  }

  bool is_internal;
  Comm comm;
  int peer;
  int tag;
};

// A message that is matched and not yet received: one of MPI's, or a payload that was announced in its place.
struct ProbedMessage {
  bp_result result{};
  Message message{};
  std::optional<uint32_t> payload_tag;
};

// Starts a send or receive. NULL: it was synchronous, and is complete.
std::unique_ptr<sdk::Work> send(GroupState& group, const bp_op& op);
std::unique_ptr<sdk::Work> receive(GroupState& group, const bp_op& op);
// Starts to receive it. Fewer bytes than it has: MPI truncates it.
Request receive_probed(GroupState& group, const ProbedMessage& probed, std::byte* data, uint64_t bytes);

class Probes final : public sdk::ProbeTable {
 public:
  explicit Probes(GroupState& group) : group_(group) {}

  bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) override;
  void drop(bp_message* message) noexcept override;
  // Waits until the messages that were dropped have come, as their senders do, but no longer than base::grace::kPrompt.
  void finish() noexcept;

 private:
  Announcement receive_announcement(const Envelope& envelope, Message message);
  void reap();  // with the mutex held

  GroupState& group_;
  std::mutex mutex_;
  PendingRequests dropped_;
};

}  // namespace backplane::mpi
