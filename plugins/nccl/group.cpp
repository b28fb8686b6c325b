// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

namespace backplane::nccl {
namespace {

constexpr const char* kLeft = " has left the group";
constexpr const char* kVanished = " is gone: its connection has ended";

// The device of this rank: named by the program or by the option, never guessed.
int chosen_device(const sdk::Context& context, const Api& api) {
  const int count = count_devices(api);
  const std::string& named = context.options.text("device");
  int64_t device = context.device;
  if (named == "rank") {
    device = context.rank % count;
  } else if (!named.empty()) {
    char* end = nullptr;
    device = std::strtoll(named.c_str(), &end, 10);
    if (*end != '\0' || device < 0) {
      throw sdk::Failure(BP_INVALID, "nccl: option device is a number, or 'rank'; not '" + named + "'");
    }
  }
  if (device < 0) {
    throw sdk::Failure(BP_INVALID, "nccl: no device was named for rank " + std::to_string(context.rank) +
                                       "; name one when the group is made (InitOptions::device), or by nccl?device=");
  }
  if (device >= count) {
    throw sdk::Failure(BP_INVALID, "nccl: there is no device " + std::to_string(device) + "; there are " +
                                       std::to_string(count) + ", counted from 0");
  }
  return static_cast<int>(device);
}

// Rank 0's, or why it has none: so that the others need not wait for it until their time is over.
ncclUniqueId agree_on_id(const sdk::Context& context, const Api& api, const sdk::Deadline& deadline) {
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
  if (value.starts_with("-")) throw sdk::Failure(BP_PEER_LOST, "nccl: rank 0 could not start: " + value.substr(1), 0);
  if (value.size() != 1 + sizeof id.internal) {
    throw sdk::Failure(BP_INTERNAL, "nccl: rank 0 left an id that is damaged", 0);
  }
  std::memcpy(&id, value.data() + 1, sizeof id);
  return id;
}

sdk::Failure gone(int32_t peer, const char* how) {
  return {BP_PEER_LOST, "nccl: rank " + std::to_string(peer) + how, peer};
}

// The connections to the other ranks, on a network of their own choice.
std::vector<sdk::Descriptor> connect_all(const sdk::Context& context) {
  const std::string& address = context.options.text("address");
  try {
    return sdk::connect_all(context, address);
  } catch (const sdk::Failure& why) {
    if (why.status() != BP_PEER_LOST && why.status() != BP_TIMEOUT && why.status() != BP_INVALID) throw;
    throw sdk::Failure(why.status(),
                       std::string("nccl: ") + why.what() + "; rank " + std::to_string(context.rank) + " listens at " +
                           address + ": on several hosts each rank needs its option address, one that the others reach",
                       why.peer_rank(), why.native_code());
  }
}

void await_ready(const sdk::Context& context, const Wire& wire, Communicator& comm, const sdk::Deadline& deadline) {
  for (auto pause = std::chrono::microseconds(20); !comm.ready();
       pause = std::min(2 * pause, std::chrono::microseconds(1000))) {
    if (context.host.abort_requested()) throw sdk::Failure(BP_CANCELLED, "nccl: the group is being aborted");
    if (const int32_t peer = wire.lost(); peer >= 0) throw gone(peer, kVanished);
    if (deadline.passed()) {
      throw sdk::Failure(BP_TIMEOUT,
                         "nccl: all ranks are there, but NCCL did not connect them in the time allowed for init; "
                         "NCCL_DEBUG=INFO says what it tries");
    }
    std::this_thread::sleep_for(pause);
  }
}

bool reduces_f8(const Api& api, int device) {
  int major = 0;
  check(api, api.cuda.device_get_attribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "asking for the compute capability of the device");
  return api.nccl_version >= 22400 && major >= 9;
}

int max_ctas(const sdk::Context& context) { return static_cast<int>(context.options.integer("max_ctas")); }

std::unique_ptr<Communicator> connect(const sdk::Context& context, const Api& api, int device, const Wire& wire,
                                      const sdk::Deadline& deadline) {
  context.host.log(BP_LOG_INFO, "nccl: NCCL " + nccl_version_text(api.nccl_version) + " from " + api.library +
                                    ", device " + std::to_string(device) + " of " + std::to_string(count_devices(api)));
  auto comm = std::make_unique<Communicator>(api, device, agree_on_id(context, api, deadline), context.rank,
                                             context.world_size, max_ctas(context));
  await_ready(context, wire, *comm, deadline);
  return comm;
}

}  // namespace

Group::Group(const sdk::Context& context, Offer offer)
    : Group(context, offer, sdk::Deadline::after(context.timeout_ns)) {}

Group::Group(const sdk::Context& context, Offer offer, const sdk::Deadline& deadline)
    : api_(open_api(context.options.text("library"))),
      host_(context.host),
      device_(chosen_device(context, api_)),
      rank_(context.rank),
      size_(context.world_size),
      stages_(context.options.boolean("stage")),
      capabilities_(offer(stages_, reduces_f8(api_, device_))),
      pool_(api_, device_),
      said_goodbye_(static_cast<size_t>(context.world_size)),
      wire_(connect_all(context), {[this](int32_t peer, const Frame& frame) { arrived(peer, frame); },
                                   [this](int32_t peer) { end_of(peer); }}),
      comm_(connect(context, api_, device_, wire_, deadline)),
      native_{sizeof native_, 0, "ncclComm_t", comm_->handle()},
      memory_(api_, device_, *comm_),
      collectives_({api_, device_, rank_, size_, fate_, pool_, *comm_}),
      messages_({api_, device_, pool_, max_ctas(context)}, rank_, size_, fate_, wire_, [this] { poller_.wake(); }),
      poller_([this](sdk::Poller::Sleep& sleep) { return progress(sleep); },
              [this](const sdk::Failure& why) {
                broken(why);
                stop_device();
              }) {}

Group::~Group() {
  poller_.stop();
  const sdk::Deadline deadline = sdk::Deadline::after(std::chrono::nanoseconds(kFarewell).count());
  if (fate_.decided()) {
    if (!stopped_) stop_device();
  } else {
    say_goodbye();
    wire_.flush(deadline.left_ns());
    messages_.close(deadline.left_ns());
    memory_.end();
    comm_->close(deadline.left_ns());
  }
  wire_.close(deadline.left_ns());
}

// A peer that gets no goodbye takes this rank for lost, and ends its operations with it slightly earlier.
void Group::say_goodbye() noexcept {
  try {
    for (int32_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_) wire_.send(peer, {});
    }
  } catch (const std::bad_alloc&) {
    // There is no memory for a frame.
  }
}

void Group::require_here(const bp_buffer& buffer) const {
  if (buffer.count == 0) return;
  if (buffer.memory == BP_HOST && !stages_) {
    throw sdk::Failure(BP_INVALID,
                       "nccl: this buffer is host memory; hand over device memory, add a backend for it "
                       "(cpu:gloo,cuda:nccl), or let it be staged (nccl?stage=true)");
  }
  if (buffer.memory == BP_CUDA && buffer.device != device_) {
    throw sdk::Failure(BP_INVALID, "nccl: this buffer is on device " + std::to_string(buffer.device) +
                                       ", and this rank's part of the group on device " + std::to_string(device_));
  }
}

std::unique_ptr<sdk::Work> Group::submit(const bp_op& op) {
  fate_.throw_if_decided();
  require_here(op.input);
  require_here(op.output);
  if (op.kind == BP_SEND || op.kind == BP_RECV) return messages_.submit(op);
  if (const int32_t lost = first_lost_.load(); lost >= 0) throw gone(lost, kVanished);
  std::unique_ptr<sdk::Work> work = collectives_.submit(op);
  if (work && collectives_.launching()) launch_behind();
  return work;
}

// By a thread of its own: CUDA may block it until the group is aborted.
void Group::launch_behind() noexcept {
  const std::lock_guard lock(launcher_mutex_);
  if (launcher_) return launcher_->wake();
  const auto launch = [this, is_on_device = false](sdk::Poller::Sleep& sleep) mutable {
    if (!std::exchange(is_on_device, true)) check(api_, api_.cuda.set_device(device_), "choosing the device");
    if (collectives_.advance()) sleep.at_most(sdk::Poller::kShortestPause);
    sleep.until_woken();
    return false;
  };
  try {
    launcher_.emplace(launch, [this](const sdk::Failure& why) { broken(why); });
  } catch (const sdk::Failure& why) {
    fate_.decide(why);
  } catch (const std::bad_alloc&) {
    fate_.decide(no_launcher_);
  }
}

// NCCL or CUDA has failed on one of the group's threads. The core's failure detector reports lost peers.
void Group::broken(const sdk::Failure& why) noexcept {
  const bool is_first = fate_.decide(why);
  if (is_first && why.status() != BP_PEER_LOST) host_.report_failure(why);
}

void Group::abort(const sdk::Failure& why) noexcept { fate_.overrule(why); }

const void* Group::extension(std::string_view id) {
  if (id == BP_EXT_DEVICE) return memory_.device_table();
  if (id == BP_EXT_PROBE) return messages_.probe_table();
  if (id == BP_EXT_NATIVE) return &native_;
  return id == BP_EXT_MEMORY ? memory_.table() : nullptr;
}

bool Group::progress(sdk::Poller::Sleep& sleep) {
  if (stopped_) {
    sleep.until_woken();
    return false;
  }
  if (fate_.decided()) {
    stop_device();
    return true;
  }
  if (!is_on_device_) {  // and it stays there: to go back to device 0 would make a context there
    check(api_, api_.cuda.set_device(device_), "choosing the device");
    is_on_device_ = true;
  }
  bool moved = wire_.progress(sleep);
  moved |= messages_.progress();
  if (!gone_.empty() && !moved) {
    const auto since = collectives_.waits_since();
    for (const auto& [peer, left_at] : gone_) {
      if (!since || Clock::now() <= std::max(left_at, *since) + grace(peer)) continue;
      fate_.decide(gone(peer, how_it_left(peer)));
      return true;
    }
    sleep.at_most(since ? 5'000'000 : 50'000'000);  // the next one begins without a notification
  }
  if (messages_.busy()) sleep.at_most(sdk::Poller::kShortestPause);
  sleep.until_woken();
  return moved;
}

void Group::arrived(int32_t peer, const Frame& frame) {
  if (frame.kind != FrameKind::kBye) return messages_.arrived(peer, frame);
  said_goodbye_[static_cast<size_t>(peer)] = true;
  messages_.lost(peer, gone(peer, kLeft), grace(peer));
}

const char* Group::how_it_left(int32_t peer) const {
  return said_goodbye_[static_cast<size_t>(peer)] ? kLeft : kVanished;
}

std::chrono::milliseconds Group::grace(int32_t peer) const {
  return said_goodbye_[static_cast<size_t>(peer)] ? kFarewell : kGrace;
}

// A peer that left in an orderly way may have done its part of a collective that this rank has still to begin: it gets
// some time. With a peer that died it cannot complete.
void Group::end_of(int32_t peer) {
  messages_.lost(peer, gone(peer, how_it_left(peer)), grace(peer));
  gone_.emplace(peer, Clock::now());
  int32_t none = -1;
  if (!said_goodbye_[static_cast<size_t>(peer)]) first_lost_.compare_exchange_strong(none, peer);
}

// Ends what is in flight, on the device and off it. All communicators go together, so that no kernel waits behind one
// that is stopped later; what they had in flight fails when the device has let go of the buffers. The channels first:
// NCCL joins a communicator's launching thread inside ncclCommAbort, and that of the collectives may wait for a
// channel's kernel.
void Group::stop_device() noexcept {
  stopped_ = true;
  wire_.cut();  // the others learn of it at once
  collectives_.look_once_more();
  messages_.look_once_more();
  api_.nccl.group_start();
  messages_.abort();
  comm_->abort();
  api_.nccl.group_end();
  while (!(collectives_.is_still() && messages_.is_still()) && !fate_.await_settled(0)) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  messages_.fail(fate_.why());
  fate_.settle();
}

}  // namespace backplane::nccl
