// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <string>

#include "backplane/base/signals.hpp"

namespace backplane::c10d {
namespace {

constexpr int64_t kLeaving = 1'000'000'000;  // nanoseconds, to carry what is queued, and to take leave
constexpr int64_t kEnding = 2'000'000'000;   // for threads

// Waits until all ranks have started, so that a missing one is named.
void meet(const sdk::Context& context, const base::Deadline& deadline) {
  const auto key = [](int32_t rank) { return "c10d-started/" + std::to_string(rank); };
  context.host.store_set(key(context.rank), "1");
  for (int32_t rank = 0; rank < context.world_size; ++rank) {
    try {
      context.host.store_get(key(rank), deadline.left_ns());
    } catch (const sdk::Failure& why) {
      throw sdk::Failure(why.status(), "c10d: waiting for rank " + std::to_string(rank) + ": " + why.what(), rank,
                         why.native_code());
    }
  }
}

}  // namespace

std::unique_ptr<sdk::ProcessGroup> Group::start(const sdk::Context& context) {
  const base::Deadline deadline = base::Deadline::after(context.timeout_ns);
  const Table& table = start_python(context.options.text("python"));
  meet(context, deadline);
  Opening opening = {context.options.text("backend").c_str(),
                     context.options.text("module").c_str(),
                     context.host.get(),
                     deadline.left_ns(),
                     context.rank,
                     context.world_size,
                     0};
  bp_error err;
  bp_error_init(&err);
  {
    const SigpipeBlocked sigpipe_blocked;
    const base::SignalsBlocked blocked;  // for the threads that torch starts
    if (table.open(&opening, &err) != BP_OK) {
      throw sdk::Failure(err.status, std::string("c10d: ") + err.text, err.peer_rank, err.native_code);
    }
  }
  return std::make_unique<Group>(std::make_shared<TorchGroup>(table, opening.handle, context.rank, context.world_size));
}

Group::Group(const std::shared_ptr<TorchGroup>& torch)
    : torch_(torch),
      collectives_(std::make_shared<Collectives>(torch)),
      messages_(std::make_shared<Messages>(torch, [collectives = collectives_](const sdk::Failure& why, bool in_order) {
        collectives->lost(why, in_order);
      })) {
  try {
    collectives_->start();
    messages_->start();
  } catch (const sdk::Failure&) {
    messages_->stop();
    torch_->close();
    messages_->join(base::Deadline::after(kEnding));
    collectives_->stop(base::Deadline::after(kEnding));
    throw;
  }
}

Group::~Group() {
  if (!failure_.raised()) {
    messages_->messenger().flush(kLeaving);
    messages_->leave(base::Deadline::after(kLeaving));
  }
  messages_->stop();
  torch_->close();
  const base::Deadline deadline = base::Deadline::after(kEnding);
  messages_->join(deadline);
  collectives_->stop(deadline);
}

std::unique_ptr<sdk::Work> Group::submit(const bp_op& op) {
  failure_.check();
  if (op.kind == BP_SEND || op.kind == BP_RECV) return messages_->messenger().submit(op);
  return collectives_->submit(op);
}

void Group::abort(const sdk::Failure& why) noexcept {
  failure_.raise_by_core(why);
  messages_->messenger().abort(why);
  messages_->stop();
  collectives_->fail(why);
}

const void* Group::extension(std::string_view id) {
  if (id == BP_EXT_PROBE) return messages_->messenger().probe_table();
  if (id == BP_EXT_NOTIFY) return sdk::notify_table();
  return nullptr;
}

}  // namespace backplane::c10d
