// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include "backplane/sdk/owned_op.hpp"

namespace backplane::shm {
namespace {

std::unique_ptr<CrossMemory> cross_memory(const sdk::Context& context, Segment* segment) {
  if (segment == nullptr) return nullptr;
  const bool spins = wait_policy_of(context.options, &segment->peers()).spin_ns > 0;
  const std::optional<ReadLimits> limits = read_limits(cma_of(context.options), is_amd_host(), spins);
  if (!limits) return nullptr;
  return std::make_unique<CrossMemory>(segment->view(), context.rank, segment->pools().own()->file(), *limits);
}

std::function<void(const std::string&)> log_of(const sdk::Context& context) {
  return [host = context.host](const std::string& text) { host.log(BP_LOG_INFO, text); };
}

// Rank 0 logs where the ranks run and what they share.
void log_topology(const sdk::Context& context, Segment& segment) {
  if (context.rank != 0) return;
  const Peers& peers = segment.peers();
  std::string text = std::to_string(context.world_size) + " ranks on one host, ";
  text.append(std::to_string(peers.processors())).append(" processors");
  const std::string parts = describe_spread(peers.localities());
  if (!parts.empty()) text.append(", ").append(parts);
  const Staging& staging = segment.view().layout().staging();
  text.append("; staging for collectives ").append(std::to_string(staging.slots * kSlotSize >> 10));
  text.append(" KiB per rank, for messages ").append(std::to_string(staging.ring >> 10)).append(" KiB per peer; ");
  text.append(describe_memory(segment.view().layout()));
  if (peers.oversubscribed()) text.append("; more ranks than processors: waits yield instead of spinning");
  const size_t older_groups = segment.pools().older_groups();
  if (older_groups > 0) text.append("; memory pools of older groups: ").append(std::to_string(older_groups));
  context.host.log(BP_LOG_INFO, text);
}

}  // namespace

WaitPolicy wait_policy_of(const sdk::Options& options, const Peers* peers) {
  const bool oversubscribed = peers != nullptr && peers->oversubscribed();
  return {.spin_ns = oversubscribed ? 0 : options.integer("spin"), .yield_ns = options.integer("yield")};
}

Group::Group(const sdk::Context& context)
    : world_size_(context.world_size),
      reductions_(context.host),
      segment_(context.world_size == 1 ? nullptr : attach(context)),
      cross_(cross_memory(context, segment_.get())),
      waiter_(segment_ ? segment_->view().member(context.rank).doorbell : own_bell_,
              segment_ ? &segment_->peers() : nullptr,
              wait_policy_of(context.options, segment_ ? &segment_->peers() : nullptr), interruption_),
      messages_(context.rank, context.world_size, segment_ ? &segment_->view() : nullptr,
                segment_ ? &segment_->peers() : nullptr, segment_ ? &segment_->pools() : nullptr, waiter_,
                cross_.get()) {
  if (!segment_) return;
  log_topology(context, *segment_);
  steps_.emplace(segment_->view(), context.rank, context.world_size, segment_->peers(), waiter_, messages_);
  collectives_.emplace(context.rank, context.world_size, reductions_, *steps_, &segment_->pools(), cross_.get(),
                       log_of(context), segment_->peers().oversubscribed());
}

Group::~Group() {
  // Operations in progress must end before the segment is unmapped. The others see that this rank left regularly.
  waiter_.abort(sdk::Failure(BP_CANCELLED, "the group was destroyed"));
  messages_.stop();
}

std::unique_ptr<sdk::Work> Group::submit(const bp_op& op) {
  if (op.kind == BP_SEND || op.kind == BP_RECV) return messages_.submit(op);
  waiter_.check();
  if (world_size_ == 1) {
    run_alone(op, reductions_);
  } else if ((op.flags & BP_OP_SYNC) != 0 && queued_.load() == 0) {
    LazyDeadline deadline(op.timeout_ns, true);
    run(op, deadline);
  } else {
    return submit_queued(op);
  }
  return nullptr;
}

class Group::Running {
 public:
  explicit Running(Group& group) : group_(group) {
    if (!group_.running_.try_lock()) {
      group_.check_hook();
      group_.running_.lock();
    }
    group_.runner_.store(::pthread_self(), std::memory_order_relaxed);
  }
  ~Running() {
    group_.runner_.store({}, std::memory_order_relaxed);
    group_.running_.unlock();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Group& group_;
};

void Group::check_hook() const {
  if (runner_.load(std::memory_order_relaxed) != ::pthread_self()) return;
  throw sdk::Failure(BP_INVALID,
                     "the interruption hook cannot start a collective of the group whose collective waits; start it "
                     "after the call, or in another group");
}

std::unique_ptr<sdk::Work> Group::submit_queued(const bp_op& op) {
  check_hook();
  queued_.fetch_add(1);
  const auto owned = std::make_shared<const sdk::OwnedOp>(op, world_size_);
  try {
    return workers_.submit([this, owned] {
      LazyDeadline never(BP_NO_TIMEOUT);
      try {
        run(owned->get(), never);
      } catch (...) {
        queued_.fetch_sub(1);
        throw;
      }
      queued_.fetch_sub(1);
    });
  } catch (...) {
    queued_.fetch_sub(1);
    throw;
  }
}

void Group::run(const bp_op& op, LazyDeadline& deadline) {
  const Running running(*this);
  waiter_.check();
  if (broken_) fail_again();
  try {
    collectives_->run(op, deadline);
  } catch (const sdk::Failure& why) {
    broken_.emplace(why);
    throw;
  }
}

void Group::fail_again() const {
  throw sdk::Failure(broken_->status(), std::string("an earlier collective failed: ") + broken_->what(),
                     broken_->peer_rank());
}

const void* Group::extension(std::string_view id) {
  if (id == BP_EXT_PROBE) return messages_.table();
  if (id == BP_EXT_NOTIFY) return sdk::notify_table();
  if (id == BP_EXT_INTERRUPT) return interruption_.table();
  return segment_ && id == BP_EXT_MEMORY ? segment_->pools().own()->table() : nullptr;
}

void Group::abort(const sdk::Failure& why) noexcept {
  waiter_.abort(why);
  if (segment_) segment_->peers().abort(why);
  workers_.abort(why);
}

}  // namespace backplane::shm
