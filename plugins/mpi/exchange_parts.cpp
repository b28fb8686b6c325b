// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "exchange.hpp"
#include "wire.hpp"

namespace backplane::mpi {
namespace {

// All parts are in flight at once. MPI works on copies: they cost little at this size, and let the operation end at any
// time. The size of the whole buffer precedes the first part, whose message is thereby longer than any buffer that goes
// undivided.
class PartsExchange final : public Operation {
 public:
  PartsExchange(GroupState& group, const bp_op& op)
      : Operation(group, op.kind),
        kind_{op.dtype, op.reduce_op},
        seq_(op.seq),
        input_(static_cast<const std::byte*>(op.input.data)),
        output_(static_cast<std::byte*>(op.output.data)),
        element_(bp_dtype_size(op.dtype)),
        bytes_(op.output.count * element_),
        peer_(1 - group.rank),
        parts_(static_cast<uint32_t>((bytes_ + kExchangedPart - 1) / kExchangedPart)),
        pending_(group.world.abandoned(), size_t{2} * parts_),
        next_(pending_.list().begin()) {
    incoming_ = group.pool->take(kSizeBytes + bytes_);
    const std::shared_ptr<std::byte> outgoing = group.pool->take(kSizeBytes + bytes_);
    Api& api = group.api();
    auto pending = pending_.list().begin();
    for (uint32_t i = 0; i < parts_; ++i, ++pending) {
      pending->in.share(incoming_);
      pending->request = api.irecv(message(incoming_, i), message_bytes(i), peer_, tag_of(i), group.own);
    }
    std::memcpy(outgoing.get(), &bytes_, kSizeBytes);
    for (uint32_t i = 0; i < parts_; ++i, ++pending) {
      pending->in.share(outgoing);
      std::memcpy(data(outgoing, i), input_ + i * kExchangedPart, part_bytes(i));
      pending->request = api.isend(message(outgoing, i), message_bytes(i), peer_, tag_of(i), group.own);
    }
  }
  ~PartsExchange() override { end_now(); }

 private:
  static constexpr uint64_t kSizeBytes = sizeof(uint64_t);

  bool advance() override {
    for (; done_ < parts_; ++done_, ++next_) {
      Envelope envelope;
      if (!group_.api().test_receive(next_->request, &envelope)) return false;
      check_size(envelope.bytes);
      const uint64_t at = done_ * kExchangedPart;
      combine_exchanged(group_, kind_, peer_, input_ + at, data(incoming_, done_), output_ + at,
                        part_bytes(done_) / element_);
    }
    for (; next_ != pending_.list().end(); ++next_) {
      if (!group_.api().test(next_->request)) return false;
    }
    return true;
  }
  // Of the next message.
  void check_size(uint64_t received) const {
    uint64_t theirs = bytes_;
    if (received != message_bytes(done_)) theirs = received;
    if (done_ == 0 && received > kExchangedPart) std::memcpy(&theirs, incoming_.get(), kSizeBytes);
    if (theirs != bytes_) throw sizes_differ(peer_, theirs, bytes_);
  }
  GivenUp give_up() noexcept override {
    auto pending = next_;
    for (uint32_t i = done_; i < parts_; ++i, ++pending) {
      try {
        if (pending->request != Request{}) group_.api().cancel(pending->request);
      } catch (const sdk::Failure&) {
        // Its memory is kept until the message comes.
      }
    }
    group_.world.abandoned().add(pending_.list());
    next_ = pending_.list().end();
    return GivenUp::kYes;
  }

  int tag_of(uint32_t part) const { return exchange_tag(seq_, part); }
  uint64_t part_bytes(uint32_t part) const { return std::min(kExchangedPart, bytes_ - part * kExchangedPart); }
  uint64_t message_bytes(uint32_t part) const { return part_bytes(part) + (part == 0 ? kSizeBytes : 0); }
  static std::byte* data(const std::shared_ptr<std::byte>& buffer, uint32_t part) {
    return buffer.get() + kSizeBytes + part * kExchangedPart;
  }
  static std::byte* message(const std::shared_ptr<std::byte>& buffer, uint32_t part) {
    return part == 0 ? buffer.get() : data(buffer, part);
  }

  const Reduction kind_;
  const uint64_t seq_;
  const std::byte* const input_;
  std::byte* const output_;
  const uint64_t element_;
  const uint64_t bytes_;
  const int peer_;
  const uint32_t parts_;
  std::shared_ptr<std::byte> incoming_;
  OwnRequests pending_;  // the receives, the sends
  PendingRequests::iterator next_;
  uint32_t done_ = 0;
};

}  // namespace

std::unique_ptr<sdk::Work> exchange_in_parts(GroupState& group, const bp_op& op) {
  return perform<PartsExchange>(group, op);
}

}  // namespace backplane::mpi
