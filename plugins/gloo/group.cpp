// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <gloo/common/error.h>

#include <string>

#include "address.hpp"
#include "backplane/sdk/owned_op.hpp"
#include "progress.hpp"
#include "tcp_device.hpp"

namespace backplane::gloo {
namespace {

constexpr const char* kUnusable = ". The group can no longer be used";

Algorithm algorithm_of(const std::string& text) {
  if (text == "ring") return Algorithm::kRing;
  if (text == "direct") return Algorithm::kDirect;
  return text == "bcube" ? Algorithm::kBcube : Algorithm::kAuto;
}

}  // namespace

struct Group::Joined {
  std::shared_ptr<Health> health;
  std::shared_ptr<Context> transport;
  std::shared_ptr<Mesh> mesh;
};

Group::Group(const sdk::Context& context, const Joined& joined)
    : health_(joined.health),
      transport_(joined.transport),
      shared_{health_, transport_, context.rank, context.world_size, Loopback(context.rank)},
      collectives_(joined.mesh, context.host, algorithm_of(context.options.text("algorithm"))),
      workers_(static_cast<size_t>(context.options.integer("threads"))) {}

std::unique_ptr<Group> Group::start(const sdk::Context& context) {
  Joined joined{std::make_shared<Health>(context.host), nullptr, nullptr};
  if (context.world_size > 1) {
    const auto deadline = base::Deadline::after(context.timeout_ns);
    const Address address = choose_address(context, deadline);
    try {
      const sdk::SignalsBlocked for_gloos_thread;
      auto device = make_device(address.attr);
      joined.transport = std::make_shared<Context>(device, joined.health, context.rank, context.world_size);
      joined.mesh = std::make_shared<Mesh>(device, joined.transport);
      joined.transport->join(deadline, address);
    } catch (const sdk::Failure&) {
      throw;
    } catch (const std::exception& e) {
      throw sdk::Failure(BP_RESOURCE, "gloo cannot listen on " + address.text + ": " + e.what());
    }
  }
  return std::unique_ptr<Group>(new Group(context, std::move(joined)));
}

Group::~Group() {
  if (transport_ && !health_->failure.raised()) transport_->flush();
  abort(sdk::Failure(BP_CANCELLED, "the group was destroyed"));
}

std::unique_ptr<sdk::Work> Group::submit(const bp_op& op) {
  health_->failure.check();
  return op.kind == BP_SEND || op.kind == BP_RECV ? submit_message(op) : submit_collective(op);
}

std::unique_ptr<sdk::Work> Group::submit_message(const bp_op& op) {
  const bool sync = (op.flags & BP_OP_SYNC) != 0;
  if (!sync) return start_async_message(shared_, op);
  const bool of_a_peer = op.peer != BP_ANY_SOURCE && op.peer != shared_.rank;
  const Clock::time_point deadline = base::Deadline::after(op.timeout_ns).at();
  const ProgressScope progress_scope(of_a_peer ? transport_.get() : nullptr);
  const std::unique_ptr<Message> message = start_message(shared_, op);
  if (!message) return nullptr;
  if (!message->wait(deadline) && message->try_cancel()) {
    throw sdk::timed_out(op);
  }
  return nullptr;
}

std::unique_ptr<sdk::Work> Group::submit_collective(const bp_op& op) {
  if (!transport_) {
    run_alone(op);
    return nullptr;
  }
  if (is_empty(op, shared_.world_size)) return nullptr;
  const Clock::time_point deadline = base::Deadline::after(op.timeout_ns).at();
  if ((op.flags & BP_OP_SYNC) != 0) {
    run(op, deadline);
    return nullptr;
  }
  const auto owned = std::make_shared<const sdk::OwnedOp>(op, shared_.world_size);
  return workers_.submit([this, owned, deadline] { run(owned->get(), deadline); });
}

// A failed collective leaves messages behind that a later one would match, so a failure ends the group.
void Group::run(const bp_op& op, Clock::time_point deadline) {
  health_->failure.check();
  try {
    const DeadlineScope scope(deadline);
    const ProgressScope progress_scope(transport_.get());
    collectives_.run(op);
    return;
  } catch (const sdk::Failure& e) {
    const std::string event = e.status() == BP_TIMEOUT ? sdk::timed_out(op).what() : sdk::describe(op) + " failed";
    health_->failure.raise(
        sdk::Failure(e.status(), event + ": " + e.what() + kUnusable, e.peer_rank(), e.native_code()));
  } catch (const std::bad_alloc&) {
    health_->failure.raise(sdk::Failure(BP_RESOURCE, sdk::describe(op) + " ran out of memory" + kUnusable));
  } catch (const std::exception& e) {
    const int lost = transport_->first_lost();
    const std::string why = lost < 0 ? e.what() : transport_->lost(lost, e.what()).what();
    health_->failure.raise(
        sdk::Failure(lost < 0 ? BP_INTERNAL : BP_PEER_LOST, sdk::describe(op) + " failed: " + why + kUnusable, lost));
  }
  health_->failure.check();
}

void Group::abort(const sdk::Failure& why) noexcept {
  health_->failure.raise_by_core(why);
  workers_.abort(why);
  if (transport_) transport_->shut_down();
}

}  // namespace backplane::gloo
