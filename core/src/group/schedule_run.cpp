// SPDX-License-Identifier: Apache-2.0
#include "group/schedule_run.hpp"

#include <cstring>
#include <deque>
#include <memory>

#include "backplane/base/grace.hpp"
#include "backplane/base/op_digest.hpp"
#include "interrupt.hpp"
#include "reduce/combine.hpp"
#include "reduce/reduce.hpp"
#include "schedule/schedule.hpp"

namespace backplane::core {
namespace {

// The tag of the messages of collective #seq: the low bits of its number, and what must be equal on all ranks. Ranks in
// different operations do not receive each other's data, nor do ranks that choose different algorithms because their
// counts differ. They wait until the fingerprints are compared, or until the timeout. The number and the digest share
// the `bits` that the backend's tags keep. If these are few the digest has most of them: messages of equal operations
// arrive in order.
uint64_t tag_of(const bp_op& op, Algorithm algorithm, uint64_t seq, uint32_t bits) {
  constexpr uint32_t kDigestBits = 24;
  constexpr uint32_t kLeastNumberBits = 3;
  const uint32_t digest_bits = std::min(kDigestBits, bits - std::min(bits, kLeastNumberBits));
  const uint32_t number_bits = bits - digest_bits;
  const uint64_t digest = base::digest_of(op).value() & (BP_BIT(digest_bits) - 1);
  return BP_TAG_INTERNAL | (seq & kOwnMessages) | uint64_t{op.kind} << 51 | static_cast<uint64_t>(algorithm) << 48 |
         digest << number_bits | (seq & (BP_BIT(number_bits) - 1));
}

// One run of a schedule. The messages of a round start together. They start during the previous round if they do not
// access memory that it uses. The destructor ends all messages.
class ScheduleRun {
 public:
  ScheduleRun(Agent& agent, const bp_op& op, int32_t world_size, const void* input, std::byte* scratch, uint64_t tag,
              Deadline deadline)
      : agent_(agent),
        op_(op),
        world_size_(static_cast<uint64_t>(world_size)),
        element_(op.kind == BP_BARRIER ? 1 : dtype_size(op.dtype)),
        input_(static_cast<const std::byte*>(input)),
        output_(static_cast<std::byte*>(op.output.data)),
        scratch_(scratch),
        tag_(tag),
        deadline_(deadline) {}
  ~ScheduleRun() { drain(); }
  ScheduleRun(const ScheduleRun&) = delete;
  ScheduleRun& operator=(const ScheduleRun&) = delete;

  void perform(const Schedule& schedule) {
    bool started = false;
    for (size_t i = 0; i < schedule.round_ends.size(); ++i) {
      const Round round = round_of(schedule, i);
      const Round next = i + 1 < schedule.round_ends.size() ? round_of(schedule, i + 1) : Round();
      const bool together = independent(round, next);
      if (!started) start_messages(round, together ? 0 : BP_OP_SYNC);
      const size_t own = messages_.size();
      if (together) start_messages(next, 0);
      for (size_t i = 0; i < own; ++i) {
        finish(messages_.front());
        messages_.pop_front();
      }
      for (const Step* step = round.locals; step != round.end; ++step) local(*step);
      started = together;
    }
  }

 private:
  struct Round {
    const Step* begin = nullptr;   // messages
    const Step* locals = nullptr;  // copies and reduces
    const Step* end = nullptr;
  };
  struct Bytes {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    bool overlaps(const Bytes& other) const { return begin < other.end && other.begin < end; }
  };
  struct Message {
    bp_work* work = nullptr;  // NULL: done
    const Step* step = nullptr;
    bp_result result = {sizeof(bp_result), -1, 0, 0};
  };

  static bool is_message(const Step& step) { return step.kind == Step::Kind::kSend || step.kind == Step::Kind::kRecv; }

  const std::byte* source(const Region& region) const {
    switch (region.buffer) {
      case BufferRole::kInput:
        return input_ + region.offset * element_;
      case BufferRole::kOutput:
        return output_ + region.offset * element_;
      default:
        return scratch_ + region.offset * element_;
    }
  }
  std::byte* target(const Region& region) const {
    return (region.buffer == BufferRole::kOutput ? output_ : scratch_) + region.offset * element_;
  }

  Bytes read(const Step& step) const {
    if (step.kind == Step::Kind::kRecv) return {};
    return {source(step.source), source(step.source) + step.source.count * element_};
  }
  Bytes written(const Step& step) const {
    if (step.kind == Step::Kind::kSend) return {};
    return {target(step.target), target(step.target) + step.target.count * element_};
  }

  static Round round_of(const Schedule& schedule, size_t index) {
    const Step* const steps = schedule.steps.data();
    const size_t begin = index == 0 ? 0 : schedule.round_ends[index - 1];
    Round round{steps + begin, steps + begin, steps + schedule.round_ends[index]};
    while (round.locals != round.end && is_message(*round.locals)) ++round.locals;
    return round;
  }

  // Whether the messages of `next` may be in flight during `round`. Compares addresses, because input and output may be
  // the same. False for empty messages, which only order the rounds, and for rounds with enough messages of their own.
  bool independent(const Round& round, const Round& next) const {
    constexpr std::ptrdiff_t kMaxMessages = 4;  // messages
    if (next.begin == next.locals || round.begin == round.locals) return false;
    if (next.locals - next.begin > kMaxMessages || round.end - round.begin > 2 * kMaxMessages) return false;
    for (const Step* later = next.begin; later != next.locals; ++later) {
      const Bytes reads = read(*later);
      const Bytes writes = written(*later);
      if (reads.begin == reads.end && writes.begin == writes.end) return false;
      for (const Step* step = round.begin; step != round.end; ++step) {
        if (reads.overlaps(written(*step)) || writes.overlaps(written(*step)) || writes.overlaps(read(*step))) {
          return false;
        }
      }
    }
    return true;
  }

  // Posts receives before sends, so that arriving data has a buffer. With BP_OP_SYNC, submit waits for the last
  // message, which saves a work and, on many backends, a thread switch.
  void start_messages(const Round& round, uint64_t flags_of_last) {
    flags_of_last &= agent_.flag_of_wait();
    const Step* last = nullptr;
    for (const Step::Kind kind : {Step::Kind::kRecv, Step::Kind::kSend}) {
      for (const Step* step = round.begin; step != round.locals; ++step) {
        if (step->kind != kind) continue;
        if (last != nullptr) start(*last, 0);
        last = step;
      }
    }
    if (last != nullptr) start(*last, flags_of_last);
  }

  void start(const Step& step, uint64_t flags) {
    bp_op op = {};
    op.struct_size = sizeof(bp_op);
    op.dtype = BP_U8;
    op.peer = step.peer;
    op.tag = agent_.native_tag(tag_);
    op.seq = op_.seq;
    op.flags = flags;
    op.timeout_ns = deadline_.left_ns();
    if (step.kind == Step::Kind::kSend) {
      op.kind = BP_SEND;
      op.input = {const_cast<std::byte*>(source(step.source)), step.source.count * element_, BP_HOST, 0};
    } else {
      op.kind = BP_RECV;
      op.output = {target(step.target), step.target.count * element_, BP_HOST, 0};
    }
    Message& message = messages_.emplace_back();
    message.step = &step;
    op.result = &message.result;
    bp_error err;
    bp_error_init(&err);
    const int32_t status = agent_.api().submit(agent_.self(), &op, &message.work, &err);
    if (status != BP_OK) raise(status, err, step);
  }

  void finish(Message& message) {
    if (message.work != nullptr) wait_for(message);
    const Step& step = *message.step;
    const uint64_t expected = step.target.count * element_;
    if (step.kind == Step::Kind::kRecv && message.result.bytes != expected) {
      throw Error(BP_INVALID,
                  fmt::format("rank {} sent {} bytes where this rank expected {}: the ranks disagree about the count, "
                              "the dtype or the operation",
                              step.peer, message.result.bytes, expected),
                  step.peer);
    }
  }

  void wait_for(Message& message) {
    bp_error err;
    bp_error_init(&err);
    const bp_process_group_api& api = agent_.api();
    const int32_t status = agent_.wait(message.work, deadline_, &err);
    if (status == BP_AGAIN) {
      const bool send = message.step->kind == Step::Kind::kSend;
      throw Error(BP_TIMEOUT,
                  fmt::format("timed out {} rank {}", send ? "sending to" : "waiting for", message.step->peer),
                  message.step->peer);
    }
    api.work_release(agent_.self(), message.work);
    message.work = nullptr;
    if (status != BP_OK) raise(status, err, *message.step);
  }

  // Ends the messages in flight. Afterwards the buffers are free.
  void drain() noexcept {
    const bp_process_group_api& api = agent_.api();
    for (const Message& message : messages_) {
      if (message.work != nullptr) api.work_cancel(agent_.self(), message.work);
    }
    for (const Message& message : messages_) {
      if (message.work == nullptr) continue;
      if (api.work_wait(agent_.self(), message.work, base::grace::kCancel, nullptr) == BP_AGAIN) {
        bp_error why;
        bp_error_init(&why);
        bp_error_set(&why, BP_CANCELLED, 0, message.step->peer,
                     "a collective failed and its messages could not be cancelled");
        agent_.abort(why);
        api.work_wait(agent_.self(), message.work, BP_NO_TIMEOUT, nullptr);
      }
      api.work_release(agent_.self(), message.work);
    }
    messages_.clear();
  }

  // Throws the error of a message. The failed rank is the peer unless the backend names another. A loss that names its
  // rank is the same sentence on all ranks.
  [[noreturn]] static void raise(int32_t status, const bp_error& err, const Step& step) {
    if (status == BP_PEER_LOST && err.peer_rank >= 0) throw_report(status, err, "");
    const char* what = step.kind == Step::Kind::kSend ? "sending to" : "receiving from";
    throw Error(status, fmt::format("{} rank {}: {}", what, step.peer, err.text),
                err.peer_rank >= 0 ? err.peer_rank : step.peer, err.native_code);
  }

  void local(const Step& step) const {
    std::byte* to = target(step.target);
    const std::byte* from = source(step.source);
    if (step.kind == Step::Kind::kCopy) {
      if (to != from) std::memcpy(to, from, step.target.count * element_);
      return;
    }
    const std::byte* left = step.source_first ? from : to;
    const std::byte* right = step.source_first ? to : from;
    if (op_.reduce_op != BP_AVG || !step.completes) {
      return combine(op_.dtype, op_.reduce_op, to, left, right, step.target.count);
    }
    const void* const both[] = {left, right};
    reduce(op_.dtype, BP_AVG, to, {both, nullptr, 2}, world_size_, step.target.count);
  }

  Agent& agent_;
  const bp_op& op_;
  const uint64_t world_size_;
  const uint64_t element_;  // bytes
  const std::byte* const input_;
  std::byte* const output_;
  std::byte* const scratch_;
  const uint64_t tag_;
  const Deadline deadline_;
  std::deque<Message> messages_;  // of this round, then of the next one; results must not move
};

bool overlap(const bp_buffer& a, const bp_buffer& b, uint64_t element_size) {
  const auto* const first = static_cast<const std::byte*>(a.data);
  const auto* const second = static_cast<const std::byte*>(b.data);
  return first < second + b.count * element_size && second < first + a.count * element_size;
}

CollectiveSpec spec_of(const Operation& operation, int32_t rank, int32_t world_size) {
  const bp_op& op = operation.op;
  CollectiveSpec spec;
  spec.kind = op.kind;
  spec.rank = rank;
  spec.world_size = world_size;
  spec.root = op.root;
  spec.count = operation.per_rank;
  spec.element_size = op.kind == BP_BARRIER ? 1 : dtype_size(op.dtype);
  spec.in_counts = op.in_counts;
  spec.in_displs = op.in_displs;
  spec.out_counts = op.out_counts;
  spec.out_displs = op.out_displs;
  spec.own_count = operation.count;
  spec.may_overlap = overlap(op.input, op.output, spec.element_size);
  return spec;
}

}  // namespace

void run_collective(const Operation& operation, int32_t rank, int32_t world_size, uint64_t seq, Deadline deadline) {
  Agent& agent = *operation.agent;
  const bp_op& op = operation.op;
  CollectiveSpec spec = spec_of(operation, rank, world_size);
  spec.topology = agent.topology();
  std::unique_ptr<Workspace> workspace = agent.borrow_workspace();
  const Schedule& schedule = workspace->schedules().get(spec);
  const bool scaled = reduces(op.kind) && op.reduce_op == BP_PREMUL_SUM;
  const uint64_t scaled_bytes = scaled ? op.input.count * spec.element_size : 0;
  std::byte* const scratch = workspace->scratch(schedule.scratch_count * spec.element_size + scaled_bytes);
  const void* input = op.input.data;
  if (scaled) {
    multiply(op.dtype, scratch, op.input.data, op.scalar, op.input.count);
    input = scratch;
  }
  try {
    ScheduleRun run(agent, op, world_size, input, scratch + scaled_bytes,
                    tag_of(op, schedule.algorithm, seq, agent.internal_tag_bits()), deadline);
    run.perform(schedule);
  } catch (...) {
    if (agent.hung()) static_cast<void>(workspace.release());  // a detached call may still use it
    throw;
  }
  agent.return_workspace(std::move(workspace));
  if (reduces(op.kind) && op.reduce_op == BP_AVG && world_size == 1) {
    divide(op.dtype, op.output.data, 1, op.output.count);  // no reduction has replaced NaN by the quiet NaN
  }
}

}  // namespace backplane::core
