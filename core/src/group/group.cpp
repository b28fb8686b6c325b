// SPDX-License-Identifier: Apache-2.0
#include "group/group.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "backplane/base/grace.hpp"
#include "group/live_groups.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"
#include "waiting.hpp"

namespace backplane::core {

Group::Group(GroupConfig config, JobResources job)
    : config_(std::move(config)),
      job_(std::move(job)),
      state_(config_, job_, [this](const Error& cause) { on_broken(cause); }),
      agents_(config_),
      trace_(config_, state_, recorder_),
      failures_(config_, job_, state_),
      fingerprints_(*this),
      operations_(*this),
      subgroups_(*this),
      call_observer_(state_, agents_) {}

Group::~Group() { destroy(); }

void Group::on_loss(const Loss& loss) {
  if (concerns(loss, config_.global_ranks)) state_.abort(loss_error(loss, config_.global_ranks));
}

void Group::on_broken(const Error& cause) {
  agents_.abort(cause);
  end_start(cause);
  trace_.write_file(cause.what());
}

// Ends the start of this group and of groups that are being made from it.
void Group::end_start(const Error& cause) {
  if (store_) store_->interrupt(BP_CANCELLED, cause.what());  // as host.h guarantees to a starting backend
  subgroups_.abort_starting(cause);
}

// On the reporter's thread.
std::string Group::answer(const Query& query) {
  switch (query.kind) {
    case Query::Kind::kPosition:
      return encode(position(recorder_, query.seq, process_identity()));
    case Query::Kind::kTrace:
      return trace_of_all(*this);
    default:
      failures_.accept(query);
      return {};
  }
}

void Group::add_to_reporter() {
  if (config_.world_size == 1) return;
  if (!job_.reporter) job_.reporter = std::make_shared<Reporter>(config_.store->view(), config_.world_size);
  const auto tick = [this] {
    fingerprints_.compare_sampled();
    trace_.write_if_requested();
  };
  reporter_id_ =
      job_.reporter->add({config_.key, config_.rank, [this](const Query& query) { return answer(query); }, tick});
}

void Group::destroy() {
  const std::lock_guard once(destroy_mutex_);  // a second caller returns when the first is done
  if (!state_.mark_destroyed()) return;
  remove_live_group(this);
  if (job_.detector) job_.detector->remove(this);
  subgroups_.destroy_all();
  // Abort discards messages in flight. It is only for operations that do not end otherwise.
  if (!operations_.cancel() || state_.in_use()) {
    const Error cause(BP_CANCELLED, fmt::format("group '{}' was destroyed", config_.name));
    agents_.abort(cause);
    end_start(cause);
  }
  state_.await_unused();
  if (reporter_id_) job_.reporter->remove(*reporter_id_);  // now no start sets it any more
  reporter_id_.reset();
  operations_.close();
  agents_.close();
  keys_.reset();
  job_.reporter.reset();
  job_.detector.reset();
  job_.keys.reset();
  job_.owner.reset();
}

void Group::end_at_exit(const Deadline& deadline) noexcept {
  try {
    if (!state_.await_unused(std::min(deadline, Deadline::after(base::grace::kOrderlyLeave)))) return;
    state_.mark_ending_with_process();
    destroy();
  } catch (const std::exception& e) {
    log(BP_LOG_WARN, "group '{}' could not be destroyed at exit: {}", config_.name, e.what());
  }
}

void Group::drop_handle() {
  if (!state_.drop_handle() || state_.ends_with_process()) return;
  if (!CallbackScope::active()) return destroy();
  start_quiet_thread("bp-end", [self = shared_from_this()] { self->destroy(); }).detach();
}

}  // namespace backplane::core
