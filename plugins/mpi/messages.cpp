// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace backplane::mpi {
namespace {

class Send final : public Operation {
 public:
  Send(GroupState& group, const bp_op& op)
      : Operation(group, op.kind), comm_((op.tag & kInternal) != 0 ? group.internal : group.user) {
    const uint64_t bytes = op.input.count * bp_dtype_size(op.dtype);
    const auto tag = static_cast<int>(op.tag & (kInternal - 1));
    is_direct_ = group.uses_directly(bytes);
    PendingRequest& message = pending_.front();
    const void* data = op.input.data;
    if (!is_direct_) {
      std::byte* const copy = message.in.take(*group.pool, bytes);
      if (bytes > 0) std::memcpy(copy, data, bytes);
      data = copy;
    }
    if (!is_announced(bytes)) {
      message.request = group.api().isend(data, bytes, op.peer, tag, comm_);
      return;
    }
    const Announcement announcement{bytes, group.payloads++ % kPayloadTags};
    PendingRequest& first = pending_.add();
    std::byte* const text = first.in.take(*group.pool, Announcement::kSize);
    announcement.write(text);
    first.request = group.api().isend(text, Announcement::kSize, op.peer, tag, comm_);
    message.request = group.api().isend(data, bytes, op.peer, static_cast<int>(announcement.tag), group.own);
  }
  ~Send() override { end_now(); }

 private:
  // Open MPI 5 completes a send without an error when a member revokes the communicator.
  bool advance() override {
    Api& api = group_.api();
    for (PendingRequest& each : pending_.list()) {
      if (each.request != Request{} && !api.test(each.request)) return false;
    }
    if (!api.is_revoked(comm_)) return true;
    throw sdk::Failure(BP_PEER_LOST, "mpi: the communicator was revoked, because the group has lost a rank");
  }
  GivenUp give_up() noexcept override {
    if (is_direct_ && pending_.front().request != Request{}) return GivenUp::kNotYet;
    group_.world.abandoned().add(pending_.list());
    return GivenUp::kYes;
  }

  const Comm comm_;
  bool is_direct_ = false;
  OwnRequests pending_{group_.world.abandoned(), 1};  // the message or payload, and perhaps its announcement
};

class Receive final : public Operation {
 public:
  Receive(GroupState& group, const bp_op& op)
      : Operation(group, op.kind),
        data_(static_cast<std::byte*>(op.output.data)),
        capacity_(op.output.count * bp_dtype_size(op.dtype)),
        result_(op.result),
        pattern_(group, op.peer, op.tag) {
    if (BP_HAS(&op, message) && op.message != nullptr) {
      take_probed(op.message);
      return;
    }
    PendingRequest& pending = pending_.front();
    std::byte* const memory = pending.in.take(*group.pool, kShort);
    first_ = memory;
    pending.request = group.api().irecv(memory, kShort, pattern_.peer, pattern_.tag, pattern_.comm);
  }
  ~Receive() override { end_now(); }

 private:
  bool advance() override {
    PendingRequest& pending = pending_.front();
    if (!has_matched_) {
      Envelope envelope;
      if (!group_.api().test_receive(pending.request, &envelope)) return false;
      if (match(envelope)) return true;
    }
    try {
      if (pending.request != Request{} && !group_.api().test(pending.request)) return false;
    } catch (const sdk::Failure&) {
      if (!failure_) throw;
    }
    if (failure_) throw sdk::Failure(*failure_);
    finish(copy_);
    return true;
  }

  // A message has come, or the announcement of one. Returns whether it is complete.
  bool match(const Envelope& envelope) {
    has_matched_ = true;
    received_ = {sizeof(bp_result), envelope.source, envelope.bytes, pattern_.tag_of(envelope)};
    if (envelope.bytes != Announcement::kSize) {
      finish(first_);
      return true;
    }
    const Announcement announcement = Announcement::read(first_);
    received_.bytes = announcement.bytes;
    begin_payload({received_, {}, announcement.tag});
    return false;
  }
  void take_probed(bp_message* message) {
    const std::unique_ptr<ProbedMessage> probed(reinterpret_cast<ProbedMessage*>(message));
    has_matched_ = true;
    received_ = probed->result;
    begin_payload(*probed);
  }
  // A message that is too long is received whole, and dropped.
  void begin_payload(const ProbedMessage& probed) {
    PendingRequest& pending = pending_.front();
    const uint64_t bytes = received_.bytes;
    is_direct_ = can_be_direct_ && group_.uses_directly(bytes) && bytes <= capacity_;
    std::byte* data = data_;
    try {
      if (!is_direct_) copy_ = data = pending.out.take(*group_.pool, bytes);
    } catch (const std::bad_alloc&) {
      failure_.emplace(BP_RESOURCE, "mpi: out of memory for a message of rank " + std::to_string(received_.source),
                       received_.source);
      pending.request = receive_probed(group_, probed, nullptr, 0);  // otherwise MPI would keep the message
      return;
    }
    pending.request = receive_probed(group_, probed, data, bytes);
  }

  // Delivers the message, which is in `from` unless that is NULL.
  void finish(const std::byte* from) {
    const uint64_t bytes = received_.bytes;
    if (result_ != nullptr) {
      result_->source = received_.source;
      result_->bytes = bytes;
      result_->tag = received_.tag;
    }
    if (bytes > capacity_) {
      throw sdk::Failure(BP_INVALID,
                         "the message of rank " + std::to_string(received_.source) + " has " + std::to_string(bytes) +
                             " bytes, but the receive buffer only " + std::to_string(capacity_),
                         received_.source);
    }
    if (bytes > 0 && from != nullptr) std::memcpy(data_, from, bytes);
  }

  GivenUp give_up() noexcept override {
    if (is_direct_ && pending_.front().request != Request{}) return GivenUp::kNotYet;
    if (!has_matched_ && pending_.front().request != Request{}) {
      try {
        if (withdraw()) return GivenUp::kCompleted;
      } catch (const std::exception&) {
        // The operation ends with the reason for which it is given up.
      }
    }
    group_.world.abandoned().add(pending_.list());
    return GivenUp::kYes;
  }
  // Takes the receive back from MPI. Returns whether a message had come. The payload of a long one is lost.
  bool withdraw() {
    constexpr int64_t kLimitNs = 20'000'000;  // libraries end a receive in one of the first polls
    PendingRequest& pending = pending_.front();
    can_be_direct_ = false;
    group_.api().cancel(pending.request);
    std::optional<Envelope> envelope;
    const auto limit = base::Deadline::after(kLimitNs);
    do {
      if (group_.api().test_cancelled(pending.request, &envelope)) return envelope && match(*envelope);
    } while (!limit.passed());
    return false;
  }

  std::byte* const data_;
  const uint64_t capacity_;
  bp_result* const result_;
  const Pattern pattern_;
  OwnRequests pending_{group_.world.abandoned(), 1};
  const std::byte* first_ = nullptr;  // where MPI writes the message, or its announcement
  bool has_matched_ = false;
  bp_result received_{};  // once matched, like those below
  bool can_be_direct_ = true;
  bool is_direct_ = false;               // MPI writes the payload to data_
  const std::byte* copy_ = nullptr;      // or there
  std::optional<sdk::Failure> failure_;  // the payload is dropped
};

}  // namespace

std::unique_ptr<sdk::Work> send(GroupState& group, const bp_op& op) { return perform<Send>(group, op); }

std::unique_ptr<sdk::Work> receive(GroupState& group, const bp_op& op) { return perform<Receive>(group, op); }

}  // namespace backplane::mpi
