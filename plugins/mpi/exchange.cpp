// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <bit>
#include <cstring>
#include <string>

#include "wire.hpp"

namespace backplane::mpi {
namespace {

// Of two ranks each message is needed anyway. Of more, large buffers are better cut into parts, as MPI does.
constexpr uint64_t kMostOfTwo = 64 << 10;  // bytes
constexpr uint64_t kMost = 4 << 10;

// A step of a rank. Peers are ranks, or -1.
struct ExchangeStep {
  int to = -1;
  int from = -1;
  bool is_result = false;  // what comes is not combined
};

// Recursive doubling (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005),
// among the largest power of two of ranks. Each of the others first gives its input to one of those, and gets the
// result at the end. All ranks combine in the same order.
class ExchangeSteps {
 public:
  ExchangeSteps(int rank, int size)
      : rank_(rank), core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))), others_(size - core_) {}

  uint32_t count() const { return doublings() + (others_ > 0 ? 2 : 0); }
  ExchangeStep at(uint32_t index) const {
    const bool is_paired = rank_ < 2 * others_;
    const bool is_other = is_paired && rank_ % 2 == 0;
    if (others_ > 0 && index == 0) {
      return !is_paired ? ExchangeStep{} : is_other ? ExchangeStep{rank_ + 1, -1} : ExchangeStep{-1, rank_ - 1};
    }
    if (others_ > 0 && index == count() - 1) {
      return !is_paired ? ExchangeStep{} : is_other ? ExchangeStep{-1, rank_ + 1, true} : ExchangeStep{rank_ - 1, -1};
    }
    if (is_other) return {};
    const int position = is_paired ? rank_ / 2 : rank_ - others_;
    const int other = position ^ (1 << (index - (others_ > 0 ? 1 : 0)));
    const int peer = other < others_ ? 2 * other + 1 : other + others_;
    return {peer, peer};
  }

 private:
  uint32_t doublings() const { return static_cast<uint32_t>(std::bit_width(static_cast<unsigned>(core_)) - 1); }

  int rank_;
  int core_;
  int others_;
};

class Exchange final : public Operation {
 public:
  Exchange(GroupState& group, const bp_op& op)
      : Operation(group, op.kind),
        steps_(group.rank, group.world_size),
        reduction_{op.dtype, op.reduce_op},
        count_(op.output.count),
        bytes_(count_ * bp_dtype_size(op.dtype)),
        seq_(op.seq),
        is_direct_(group.uses_directly(bytes_)),
        output_(static_cast<std::byte*>(op.output.data)) {
    PendingRequest& out = pending_.front();
    if (is_direct_) {
      value_ = static_cast<std::byte*>(op.input.data);
      sum_ = output_;
    } else {
      value_ = sum_ = out.in.take(*group.pool, bytes_);
      if (bytes_ > 0) std::memcpy(sum_, op.input.data, bytes_);
    }
    incoming_ = pending_.back().in.take(*group.pool, bytes_);
    begin_step();
  }
  ~Exchange() override { end_now(); }

 private:
  bool advance() override {
    while (step_ < steps_.count()) {
      // The send is asked about before its answer has come, not after.
      if (!has_gone() || !has_come()) return false;
      if (current_.from >= 0) take();
      ++step_;
      begin_step();
    }
    if (bytes_ > 0 && value_ != output_) std::memcpy(output_, value_, bytes_);
    return true;
  }
  // The receive is posted before the send: the peer's message then comes straight to its place.
  void begin_step() {
    if (step_ == steps_.count()) return;
    current_ = steps_.at(step_);
    const int tag = exchange_tag(seq_, step_);
    Api& api = group_.api();
    if (current_.from >= 0) {
      pending_.back().request = api.irecv(incoming_, bytes_, current_.from, tag, group_.own);
    }
    if (current_.to >= 0) pending_.front().request = api.isend(value_, bytes_, current_.to, tag, group_.own);
  }
  bool has_come() {
    if (pending_.back().request == Request{}) return true;
    Envelope envelope;
    if (!group_.api().test_receive(pending_.back().request, &envelope)) return false;
    if (envelope.bytes == bytes_) return true;
    throw sizes_differ(current_.from, envelope.bytes, bytes_);
  }
  bool has_gone() {
    PendingRequest& out = pending_.front();
    return out.request == Request{} || group_.api().test(out.request);
  }
  // MPI no longer reads value_.
  void take() {
    std::byte* const to = step_ + 1 == steps_.count() ? output_ : sum_;
    if (current_.is_result) {
      if (bytes_ > 0) std::memcpy(to, incoming_, bytes_);
    } else {
      combine_exchanged(group_, reduction_, current_.from, value_, incoming_, to, count_);
    }
    value_ = to;
  }

  GivenUp give_up() noexcept override {
    if (is_direct_ && pending_.front().request != Request{}) return GivenUp::kNotYet;
    cancel_receive();
    group_.world.abandoned().add(pending_.list());
    return GivenUp::kYes;
  }
  void cancel_receive() noexcept {
    try {
      if (pending_.back().request != Request{}) group_.api().cancel(pending_.back().request);
    } catch (const sdk::Failure&) {
      // Its memory is kept until the message comes.
    }
  }

  const ExchangeSteps steps_;
  const Reduction reduction_;
  const uint64_t count_;
  const uint64_t bytes_;
  const uint64_t seq_;
  const bool is_direct_;  // MPI reads what it sends from the program's memory
  std::byte* const output_;
  const std::byte* value_ = nullptr;  // so far
  std::byte* sum_ = nullptr;          // where the next value is made
  std::byte* incoming_ = nullptr;
  OwnRequests pending_{group_.world.abandoned(), 2};  // the send, the receive
  uint32_t step_ = 0;
  ExchangeStep current_;
};

}  // namespace

bool exchanges(const GroupState& group, const bp_op& op) {
  if (op.kind != BP_ALL_REDUCE || group.reduce == nullptr) return false;
  return op.output.count * bp_dtype_size(op.dtype) <= (group.world_size <= 2 ? kMostOfTwo : kMost);
}

std::unique_ptr<sdk::Work> exchange(GroupState& group, const bp_op& op) {
  const bool has_parts = group.world_size == 2 && op.output.count * bp_dtype_size(op.dtype) > kExchangedPart;
  return has_parts ? exchange_in_parts(group, op) : perform<Exchange>(group, op);
}

sdk::Failure sizes_differ(int peer, uint64_t theirs, uint64_t own) {
  return {BP_INVALID,
          "the all_reduce of rank " + std::to_string(peer) + " has " + std::to_string(theirs) + " bytes, this rank's " +
              std::to_string(own) + "; reduce the same number of elements on all ranks",
          peer};
}

void combine_exchanged(const GroupState& group, const Reduction& reduction, int peer, const std::byte* own,
                       const std::byte* theirs, std::byte* to, uint64_t count) {
  const bool is_first = group.rank < peer;
  const int32_t status =
      group.reduce->combine(reduction.dtype, reduction.op, to, is_first ? own : theirs, is_first ? theirs : own, count);
  if (status != BP_OK) throw sdk::Failure(status, "mpi: the core cannot combine the elements of this all_reduce");
}

}  // namespace backplane::mpi
