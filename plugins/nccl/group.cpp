// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "backplane/base/grace.hpp"
#include "options.hpp"

namespace backplane::nccl {
namespace {

// Rank 0 publishes the id of the communicator, or its failure, so that the other ranks do not wait until the deadline.
ncclUniqueId exchange_id(const sdk::Context& context, const Api& api, const sdk::Deadline& deadline) {
  const std::string key = "nccl.id";
  ncclUniqueId id{};
  std::string value;
  if (context.rank == 0) {
    try {
      id = Communicator::new_id(api);
    } catch (const sdk::Failure& why) {
      context.host.store_set(key, std::string("-") + why.what());
      throw;
    }
    value.assign("+").append(id.internal, sizeof id.internal);
    context.host.store_set(key, value);
    return id;
  }
  value = sdk::detail::await_value(context, key, deadline, 0, "nccl: waiting for rank 0");
  if (value.starts_with("-")) throw sdk::Failure(BP_PEER_LOST, "nccl: rank 0 cannot start: " + value.substr(1), 0);
  if (value.size() != 1 + sizeof id.internal) {
    throw sdk::Failure(BP_INTERNAL, "nccl: the store holds a malformed id from rank 0", 0);
  }
  std::memcpy(&id, value.data() + 1, sizeof id);
  return id;
}

std::vector<sdk::Descriptor> connect_all(const sdk::Context& context) {
  const std::string address = sdk::choose_address(context, context.options.text("address")).address;
  try {
    return sdk::connect_all(context, context.options.text("address"));
  } catch (const sdk::Failure& why) {
    std::string text = std::string("nccl: ") + why.what();
    if (why.status() == BP_PEER_LOST || why.status() == BP_TIMEOUT) {
      text += "; rank " + std::to_string(context.rank) + " listens on " + address +
              "; set each rank's option address to one that the others reach";
    }
    throw sdk::Failure(why.status(), text, why.peer_rank(), why.native_code());
  }
}

void await_ready(const sdk::Context& context, const Transport& transport, Communicator& comm,
                 const sdk::Deadline& deadline) {
  for (auto pause = std::chrono::microseconds(20); !comm.ready();
       pause = std::min(2 * pause, std::chrono::microseconds(1000))) {
    if (context.host.abort_requested()) throw sdk::Failure(BP_CANCELLED, "nccl: the group is being aborted");
    if (const int32_t peer = transport.disconnected(); peer >= 0) throw lost_peer(peer, false);
    if (deadline.passed()) {
      throw sdk::Failure(BP_TIMEOUT,
                         "nccl: all ranks have joined, but NCCL did not connect them within the timeout of init; set "
                         "NCCL_DEBUG=INFO to see why");
    }
    std::this_thread::sleep_for(pause);
  }
}

GroupContext group_context(const sdk::Context& context, GroupFailure& failure, Pool& pool) {
  const Api& api = open_api(context.options.text("library"));
  return {api, device_of(context, count_devices(api)), context.rank, context.world_size, failure, pool};
}

bool reduces_f8(const Api& api, int device) {
  int major = 0;
  check(api, api.cuda.device_get_attribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "getting the compute capability of the device");
  return api.nccl_version >= 22400 && major >= 9;
}

std::unique_ptr<Communicator> connect(const sdk::Context& context, const Api& api, int device,
                                      const Transport& transport, const sdk::Deadline& deadline) {
  context.host.log(BP_LOG_INFO, "nccl: NCCL " + nccl_version_text(api.nccl_version) + " from " + api.library +
                                    ", device " + std::to_string(device) + " of " + std::to_string(count_devices(api)));
  auto comm = std::make_unique<Communicator>(api, device, exchange_id(context, api, deadline), context.rank,
                                             context.world_size, max_ctas_of(context));
  await_ready(context, transport, *comm, deadline);
  return comm;
}

}  // namespace

Group::Group(const sdk::Context& context, SelectCapabilities select)
    : Group(context, select, sdk::Deadline::after(context.timeout_ns)) {}

Group::Group(const sdk::Context& context, SelectCapabilities select, const sdk::Deadline& deadline)
    : host_(context.host),
      c_(group_context(context, failure_, pool_)),
      stages_(context.options.boolean("stage")),
      capabilities_(select(stages_, reduces_f8(c_.api, c_.device))),
      pool_(c_.api, c_.device),
      departures_(context.world_size),
      transport_(connect_all(context), {[this](int32_t peer, const Frame& frame) { on_frame(peer, frame); },
                                        [this](int32_t peer) { on_disconnect(peer); }}),
      comm_(connect(context, c_.api, c_.device, transport_, deadline)),
      native_{sizeof native_, 0, "ncclComm_t", comm_->handle()},
      memory_(c_.api, c_.device, *comm_),
      collectives_(c_, *comm_),
      messages_({c_.api, c_.device, pool_, max_ctas_of(context)}, c_.rank, c_.size, failure_, transport_,
                [this] { poller_.wake(); }),
      poller_(on_device(c_.api, c_.device, [this](sdk::Poller::Sleep& sleep) { return progress(sleep); }),
              [this](const sdk::Failure& why) {
                fail(why);
                stop_device();
              }),
      launcher_(c_, collectives_, [this](const sdk::Failure& why) { fail(why); }) {}

Group::~Group() {
  poller_.stop();
  const sdk::Deadline deadline = sdk::Deadline::after(base::grace::kOrderlyLeave);
  if (failure_.is_set()) {
    if (!failure_.device_stopped()) stop_device();
  } else {
    send_goodbyes();
    transport_.flush(deadline.left_ns());
    messages_.close(deadline.left_ns());
    memory_.end();
    comm_->close(deadline.left_ns());
  }
  transport_.close(deadline.left_ns());
}

void Group::send_goodbyes() noexcept {
  try {
    messages_.pass_frames();
    for (int32_t peer = 0; peer < c_.size; ++peer) {
      if (peer != c_.rank) transport_.send(peer, {.kind = FrameKind::kGoodbye});
    }
  } catch (const std::exception&) {
    // Without a goodbye the peers treat this rank as lost, and end their operations with it slightly earlier.
  }
}

void Group::require_supported(const bp_buffer& buffer) const {
  if (buffer.count == 0) return;
  if (buffer.memory == BP_HOST && !stages_) {
    throw sdk::Failure(BP_INVALID,
                       "nccl: this buffer is host memory; pass device memory, add a backend for host memory "
                       "(cpu:gloo,cuda:nccl), or stage it (nccl?stage=true)");
  }
  if (buffer.memory == BP_CUDA && buffer.device != c_.device) {
    throw sdk::Failure(BP_INVALID, "nccl: this buffer is on device " + std::to_string(buffer.device) +
                                       ", but this rank uses device " + std::to_string(c_.device));
  }
}

std::unique_ptr<sdk::Work> Group::submit(const bp_op& op) {
  failure_.throw_if_set();
  require_supported(op.input);
  require_supported(op.output);
  if (op.kind == BP_SEND || op.kind == BP_RECV) return messages_.submit(op);
  if (const int32_t lost = departures_.first_lost(); lost >= 0) throw lost_peer(lost, false);
  std::unique_ptr<sdk::Work> work = collectives_.submit(op);
  if (work && collectives_.launching()) launcher_.launch();
  return work;
}

// NCCL or CUDA has failed on one of the group's threads. The core's failure detector reports lost peers.
void Group::fail(const sdk::Failure& why) noexcept {
  const bool is_first = failure_.set(why);
  if (is_first && why.status() != BP_PEER_LOST) host_.report_failure(why);
}

void Group::abort(const sdk::Failure& why) noexcept { failure_.set_by_core(why); }

const void* Group::extension(std::string_view id) {
  if (id == BP_EXT_DEVICE) return memory_.device_table();
  if (id == BP_EXT_PROBE) return messages_.probe_table();
  if (id == BP_EXT_NATIVE) return &native_;
  return id == BP_EXT_MEMORY ? memory_.table() : nullptr;
}

bool Group::progress(sdk::Poller::Sleep& sleep) {
  if (failure_.is_set()) {
    if (!failure_.device_stopped()) stop_device();
    sleep.until_woken();
    return false;
  }
  bool moved = transport_.progress(sleep);
  moved |= messages_.progress();
  if (!moved && fail_overdue(sleep)) return true;
  if (messages_.busy()) sleep.at_most(sdk::Poller::kShortestPause);
  sleep.until_woken();
  return moved;
}

// Fails the group if a collective has waited for a disconnected peer longer than its grace.
bool Group::fail_overdue(sdk::Poller::Sleep& sleep) {
  if (!departures_.any_disconnected()) return false;
  const auto since = collectives_.waiting_since();
  if (const auto peer = since ? departures_.overdue(*since) : std::nullopt) {
    failure_.set(departures_.loss_of(*peer));
    return true;
  }
  // Nothing wakes the poller when a collective is submitted.
  sleep.at_most(since ? 5'000'000 : 50'000'000);
  return false;
}

void Group::on_frame(int32_t peer, const Frame& frame) {
  if (frame.kind != FrameKind::kGoodbye) return messages_.on_frame(peer, frame);
  departures_.note_goodbye(peer);
  messages_.lost(peer, departures_.loss_of(peer), departures_.grace_of(peer));
}

void Group::on_disconnect(int32_t peer) {
  messages_.lost(peer, departures_.loss_of(peer), departures_.grace_of(peer));
  departures_.note_disconnect(peer);
}

// Ends all operations in flight. Aborts all communicators together, so that no kernel waits behind one that is stopped
// later. Operations fail once the device has released their buffers. The channels come first: NCCL joins a
// communicator's launching thread in ncclCommAbort, and that of the collectives may wait for a channel's kernel.
void Group::stop_device() noexcept {
  transport_.disconnect();
  collectives_.collect_finished();
  messages_.collect_finished();
  c_.api.nccl.group_start();
  messages_.abort();
  comm_->abort();
  c_.api.nccl.group_end();
  while (!(collectives_.is_idle() && messages_.is_idle()) && !failure_.await_device_stopped(0)) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  messages_.fail(failure_.cause());
  failure_.set_device_stopped();
}

}  // namespace backplane::nccl
