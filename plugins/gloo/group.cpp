// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <gloo/common/error.h>

#include <string>

#include "address.hpp"
#include "backplane/sdk/owned_op.hpp"
#include "device.hpp"
#include "progress.hpp"

namespace backplane::gloo {
namespace {

std::string describe(const bp_op& op) {
  if (op.kind != BP_SEND && op.kind != BP_RECV) {
    return std::string(sdk::op_name(op.kind)) + " #" + std::to_string(op.seq);
  }
  const std::string peer = op.peer == BP_ANY_SOURCE ? "any rank" : "rank " + std::to_string(op.peer);
  return std::string(op.kind == BP_SEND ? "send to " : "recv from ") + peer + " with tag " + std::to_string(op.tag);
}

std::string timeout_text(const bp_op& op) { return std::to_string(op.timeout_ns / 1'000'000) + " ms"; }

Algorithm algorithm_of(const std::string& text) {
  if (text == "ring") return Algorithm::kRing;
  if (text == "direct") return Algorithm::kDirect;
  return text == "bcube" ? Algorithm::kBcube : Algorithm::kAuto;
}

}  // namespace

struct Group::Connected {
  std::shared_ptr<Health> health;
  std::shared_ptr<Context> transport;
  std::shared_ptr<Mesh> mesh;
};

Group::Group(const sdk::Context& context, const Connected& connected)
    : health_(connected.health),
      transport_(connected.transport),
      shared_{health_, transport_, context.rank, context.world_size, Loopback(context.rank)},
      collectives_(connected.mesh, context.host, algorithm_of(context.options.text("algorithm"))),
      workers_(static_cast<size_t>(context.options.integer("threads"))) {}

std::unique_ptr<Group> Group::start(const sdk::Context& context) {
  Connected connected{std::make_shared<Health>(context.host), nullptr, nullptr};
  if (context.world_size > 1) {
    const auto deadline = base::Deadline::after(context.timeout_ns);
    const Address address = choose_address(context, deadline);
    try {
      const sdk::SignalsBlocked for_gloos_thread;
      auto device = make_device(address.attr);
      connected.transport = std::make_shared<Context>(device, connected.health, context.rank, context.world_size);
      connected.mesh = std::make_shared<Mesh>(device, connected.transport);
      connected.transport->connect(deadline);
    } catch (const sdk::Failure&) {
      throw;
    } catch (const std::exception& e) {
      throw sdk::Failure(BP_RESOURCE, "gloo cannot listen on " + address.text + ": " + e.what());
    }
  }
  return std::unique_ptr<Group>(new Group(context, std::move(connected)));
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
    throw sdk::Failure(BP_TIMEOUT, describe(op) + " found no matching operation within " + timeout_text(op), op.peer);
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
    const std::string within = e.status() == BP_TIMEOUT ? " did not end within " + timeout_text(op) : " failed";
    health_->failure.raise(sdk::Failure(e.status(),
                                        describe(op) + within + ": " + e.what() + ". The group can no longer be used",
                                        e.peer_rank(), e.native_code()));
  } catch (const std::bad_alloc&) {
    health_->failure.raise(
        sdk::Failure(BP_RESOURCE, describe(op) + " ran out of memory. The group can no longer be used"));
  } catch (const std::exception& e) {
    const int lost = transport_->first_lost();
    health_->failure.raise(lost < 0
                               ? sdk::Failure(BP_INTERNAL, describe(op) + " failed in gloo: " + e.what())
                               : sdk::Failure(BP_PEER_LOST,
                                              describe(op) + " failed: the connection to rank " + std::to_string(lost) +
                                                  " has ended. The group can no longer be used",
                                              lost));
  }
  health_->failure.check();
}

void Group::abort(const sdk::Failure& why) noexcept {
  health_->failure.set_host_cause(why);
  workers_.abort(why);
  if (transport_) transport_->shut_down();
}

}  // namespace backplane::gloo
