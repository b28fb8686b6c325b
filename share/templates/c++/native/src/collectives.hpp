// The native collectives of this backend: along a binomial tree, up to rank 0 and down from the root. Replace them with
// those of your fabric (multicast, in-network reductions).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include <backplane/sdk/sdk.hpp>

namespace sdk = backplane::sdk;

class AcmeCollectives {
 public:
  AcmeCollectives(const sdk::Context& context, sdk::Messenger& messenger)
      : rank_(context.rank), world_size_(context.world_size), host_(context.host), messenger_(messenger) {}

  // Blocks until the operation is done on this rank. Throws at the deadline, on a stop request, or when a message
  // fails. Any thread; several operations may run at once, each with its own tag.
  void run(const bp_op& op, const sdk::Deadline& deadline, const std::stop_token& stop) {
    const Call call{op, op.output.count, bp_dtype_size(op.dtype), kTag | op.seq, deadline, stop};
    if (op.kind == BP_BROADCAST) return down(call, op.root);
    if (op.kind == BP_ALL_REDUCE && op.output.data != op.input.data && call.count > 0) {
      std::memcpy(op.output.data, op.input.data, call.count * call.width);
    }
    up(call);  // a barrier is an all_reduce of 0 elements
    down(call, 0);
  }

 private:
  static constexpr uint64_t kTag = UINT64_C(1) << 62;      // distinct from tags of users and of the core
  static constexpr uint64_t kSegment = UINT64_C(1) << 20;  // bytes received before they are reduced
  static constexpr int64_t kGrace = 100'000'000;           // nanoseconds for a cancelled message to end

  struct Call {
    const bp_op& op;
    uint64_t count;
    uint64_t width;  // bytes of one element
    uint64_t tag;
    const sdk::Deadline& deadline;
    const std::stop_token& stop;
    std::byte* data() const { return static_cast<std::byte*>(op.output.data); }
  };

  // Reduces to rank 0, so that all ranks get the same bits.
  void up(const Call& call) {
    std::vector<std::byte> theirs(std::min(call.count * call.width, kSegment));
    for (int32_t step = 1; step < world_size_; step *= 2) {
      if ((rank_ & step) != 0) return pass(call, true, rank_ - step, theirs);
      if (rank_ + step < world_size_) pass(call, false, rank_ + step, theirs);
    }
  }

  // Sends this rank's part to `peer` in segments, or receives the part of `peer` and reduces it.
  void pass(const Call& call, bool sends, int32_t peer, std::vector<std::byte>& theirs) {
    const uint64_t total = call.count * call.width;
    for (uint64_t at = 0; at == 0 || at < total; at += kSegment) {
      const uint64_t size = std::min(total - at, kSegment);
      if (sends) {
        finish(call, messenger_.send(peer, call.tag, call.data() + at, size));
        continue;
      }
      receive(call, peer, theirs.data(), size);
      std::byte* mine = call.data() + at;
      if (size > 0) host_.combine(call.op.dtype, call.op.reduce_op, mine, mine, theirs.data(), size / call.width);
    }
  }

  // Sends the root's data to all ranks.
  void down(const Call& call, int32_t root) {
    const int32_t place = (rank_ - root + world_size_) % world_size_;
    const auto rank_at = [this, root](int32_t other) { return (other + root) % world_size_; };
    const uint64_t size = call.count * call.width;
    int32_t step = 1;
    while (step < world_size_ && (place & step) == 0) step *= 2;
    if (place != 0) receive(call, rank_at(place - step), call.data(), size);
    for (step /= 2; step > 0; step /= 2) {
      if (place + step < world_size_) {
        finish(call, messenger_.send(rank_at(place + step), call.tag, call.data(), size));
      }
    }
  }

  void receive(const Call& call, int32_t peer, void* data, uint64_t size) {
    bp_result result = {sizeof result, -1, 0, 0};
    finish(call, messenger_.recv(peer, call.tag, data, size, &result));
    if (result.bytes == size) return;
    throw sdk::Failure(BP_INVALID,
                       "acme-id: rank " + std::to_string(peer) + " sent " + std::to_string(result.bytes) +
                           " bytes where this rank expects " + std::to_string(size) + "; give all ranks the same count",
                       peer);
  }

  // Waits for one message. It must not stay in flight, because its buffer may belong to this call.
  void finish(const Call& call, std::unique_ptr<sdk::Work> work) {
    if (!work) return;
    const std::stop_callback cancel(call.stop, [&work] { work->cancel(); });
    if (work->wait(call.deadline.left_ns())) return;
    const sdk::Failure why(BP_TIMEOUT, "acme-id: a collective was not done in time");
    work->cancel();
    try {
      if (!work->wait(kGrace)) messenger_.abort(why);
      work->wait(BP_NO_TIMEOUT);
    } catch (const sdk::Failure&) {
      throw why;
    }
    throw why;
  }

  const int32_t rank_;
  const int32_t world_size_;
  const sdk::Host host_;
  sdk::Messenger& messenger_;
};
