// SPDX-License-Identifier: Apache-2.0
//
// Probed messages.
#include <string>

#include "backplane/base/grace.hpp"
#include "messages.hpp"

namespace backplane::mpi {

Request receive_probed(GroupState& group, const ProbedMessage& probed, std::byte* data, uint64_t bytes) {
  if (!probed.payload_tag) return group.api().imrecv(data, bytes, probed.message);
  return group.api().irecv(data, bytes, probed.result.source, static_cast<int>(*probed.payload_tag), group.own);
}

bp_message* Probes::probe(int32_t peer, uint64_t tag, bp_result& result) {
  group_.failure.check();
  const Pattern pattern(group_, peer, tag);
  auto probed = std::make_unique<ProbedMessage>();
  Envelope envelope;
  const auto message = group_.api().improbe(pattern.peer, pattern.tag, pattern.comm, &envelope);
  if (!message) return nullptr;
  probed->message = *message;
  probed->result = {sizeof(bp_result), envelope.source, envelope.bytes, pattern.tag_of(envelope)};
  if (envelope.bytes == Announcement::kSize) {
    const Announcement announcement = receive_announcement(envelope, *message);
    probed->payload_tag = announcement.tag;
    probed->result.bytes = announcement.bytes;
  }
  result.source = probed->result.source;
  result.bytes = probed->result.bytes;
  result.tag = probed->result.tag;
  return reinterpret_cast<bp_message*>(probed.release());
}

// So short a message comes with its envelope.
Announcement Probes::receive_announcement(const Envelope& envelope, Message message) {
  OwnRequests pending(group_.world.abandoned(), 1);
  std::byte* const data = pending.front().in.take(*group_.pool, Announcement::kSize);
  pending.front().request = group_.api().imrecv(data, Announcement::kSize, message);
  const base::Deadline deadline = base::Deadline::after(base::grace::kPrompt);
  while (!group_.api().test(pending.front().request)) {
    if (!deadline.passed() && !group_.failure.raised()) continue;
    group_.world.abandoned().add(pending.list());
    group_.failure.check();
    throw sdk::Failure(BP_INTERNAL,
                       "mpi: the announcement of a message of rank " + std::to_string(envelope.source) +
                           " did not come with its envelope within 1 s",
                       envelope.source);
  }
  return Announcement::read(data);
}

void Probes::drop(bp_message* message) noexcept {
  const std::unique_ptr<ProbedMessage> probed(reinterpret_cast<ProbedMessage*>(message));
  if (group_.failure.raised()) return;
  sdk::guarded(nullptr, [this, &probed] {  // after a failure MPI keeps the message, and a long send waits
    PendingRequests pending(1);
    std::byte* const data = pending.front().out.take(*group_.pool, probed->result.bytes);
    pending.front().request = receive_probed(group_, *probed, data, probed->result.bytes);
    const std::lock_guard lock(mutex_);
    dropped_.splice(dropped_.end(), pending);
    reap();
    group_.world.progress().hurry();  // no thread waits for it
    return BP_OK;
  });
}

void Probes::reap() {
  dropped_.remove_if([this](PendingRequest& each) { return group_.api().test(each.request); });
}

void Probes::finish() noexcept {
  const base::Deadline deadline = base::Deadline::after(base::grace::kPrompt);
  const std::lock_guard lock(mutex_);
  sdk::guarded(nullptr, [this, &deadline] {
    for (reap(); !dropped_.empty() && !group_.failure.raised() && !deadline.passed(); reap()) {
    }
    return BP_OK;
  });
  group_.world.abandoned().add(dropped_);
}

}  // namespace backplane::mpi
