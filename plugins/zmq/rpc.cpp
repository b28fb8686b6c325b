// SPDX-License-Identifier: Apache-2.0
#include "rpc.hpp"

#include <sys/random.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include "address.hpp"
#include "backplane/sdk/worker.hpp"

namespace backplane::zmq {
namespace {

using Clock = std::chrono::steady_clock;

// Longest interval of maintain() while a message waits for its confirmation.
constexpr std::chrono::milliseconds kMaintainInterval(500);

// Delay after the loss of a worker before a message dials it again.
constexpr std::chrono::seconds kRetryAfter(5);

// The settings of a process group, but with the largest message of RPC and no limit on queued messages.
Settings settings_of(const sdk::Context& context, uint64_t max_message_bytes) {
  Settings settings = read_settings(context);
  settings.send_high_water_mark = 0;
  settings.max_message_size = static_cast<int64_t>(max_message_bytes + kMaxOverhead);
  return settings;
}

}  // namespace

void RpcAgent::Released::add(std::unique_ptr<Outgoing> message) {
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    any_ = true;
  }
  agent_.sleep_.wake_if_asleep();
}

std::vector<std::unique_ptr<Outgoing>> RpcAgent::Released::take() {
  if (!any_.exchange(false)) return {};
  const std::lock_guard lock(mutex_);
  return std::exchange(messages_, {});
}

RpcAgent::RpcAgent(const sdk::Context& context)
    : core_(context.host),
      host_(context.host),
      rank_(context.rank),
      settings_(settings_of(context, core_.max_message_bytes())),
      released_(this),
      sockets_(settings_, context.host.secure(), static_cast<size_t>(context.world_size - 1)),
      peers_(static_cast<size_t>(context.world_size)) {
  publish_address();
  for (int32_t rank = 0; rank < context.world_size; ++rank) look_up(rank, context);
  sleep_.add_descriptors(sockets_.descriptors());
  thread_ = sdk::start_thread([this] { run(); });
}

RpcAgent::~RpcAgent() { abort(sdk::Failure(BP_CANCELLED, "this worker has left")); }

// "<token><host> <address>".
void RpcAgent::publish_address() {
  Token& token = peers_[static_cast<size_t>(rank_)].token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    throw sdk::Failure(BP_RESOURCE, "zmq: cannot get random bytes (getrandom)");
  }
  host_.store_set(
      address_key(rank_),
      std::string(token.data(), token.size()).append(host_identity()).append(" ").append(format_address(sockets_)));
}

void RpcAgent::look_up(int32_t rank, const sdk::Context& context) {
  if (rank == rank_) return;
  const std::string entry = host_.store_get(address_key(rank), context.timeout_ns);
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const size_t space = entry.find(' ', std::min(entry.size(), peer.token.size()));
  if (space == std::string::npos) {
    throw sdk::Failure(BP_INVALID, "zmq: the store has no valid address of rank " + std::to_string(rank), rank);
  }
  std::copy_n(entry.begin(), peer.token.size(), peer.token.begin());
  const std::string host = entry.substr(peer.token.size(), space - peer.token.size());
  peer.address = parse_address(entry.substr(space + 1), settings_.ipc);
  refuse_loopback(rank_, settings_.address, rank, host, sdk::address_in(peer.address.endpoint));
}

void RpcAgent::send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) {
  if (message.buffers().size() >= kMaxParts) {
    throw sdk::Failure(BP_INVALID,
                       "a message has " + std::to_string(message.buffers().size()) + " buffers; pack them into fewer");
  }
  for (const bp_buffer& buffer : message.buffers()) {
    if (buffer.memory != BP_HOST) {
      throw sdk::Failure(BP_UNSUPPORTED,
                         "zmq carries host memory only; choose tensorpipe, with device_maps, for arrays of devices, "
                         "or copy them to the host");
    }
  }
  const TimePoint now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (ended_) throw sdk::Failure(*ended_);
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.lost && now < peer.lost_at + kRetryAfter) throw sdk::Failure(*peer.lost);
  if (std::exchange(peer.lost, std::nullopt)) peer.failures = 0;
  auto outgoing = std::make_unique<Outgoing>(std::move(message), peer.last_number + 1, deadline_after(timeout_ns));
  const Message queued(outgoing.release(),
                       [this](Outgoing* unused) { released_.add(std::unique_ptr<Outgoing>(unused)); });
  ++peer.last_number;
  if (peer.unconfirmed.empty()) peer.confirmed_at = now;
  peer.unconfirmed.push_back(queued);
  try {
    if (!peer.dialled || !post(to, RpcKind::kMessage, queued)) return maintain_at(peer.dial_at);
  } catch (...) {
    peer.unconfirmed.pop_back();  // otherwise it would be sent again
    throw;
  }
  if (due_ > now + kMaintainInterval) maintain_at(now + kMaintainInterval);
}

// Makes the thread call maintain() by `due`.
void RpcAgent::maintain_at(TimePoint due) {
  due_ = std::min(due_, due);
  sleep_.wake();
}

void RpcAgent::run() {
  try {
    serve();
  } catch (const std::exception& e) {
    fail(sdk::Failure(BP_RESOURCE, std::string("zmq: the agent of this worker has failed: ").append(e.what())));
  }
}

// Usually out of memory. The peers see broken connections and cannot reconnect.
void RpcAgent::fail(const sdk::Failure& why) {
  Events events;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) ended_.emplace(why);
    sockets_.close({}, {});
    for (int32_t rank = 0; rank < static_cast<int32_t>(peers_.size()); ++rank) {
      Peer& peer = peers_[static_cast<size_t>(rank)];
      for (const Message& message : peer.unconfirmed) events.failed.push_back({rank, message->message.id(), why});
      peer.unconfirmed.clear();
    }
  }
  events.lost.emplace_back(-1, why);
  report(events);
}

void RpcAgent::serve() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    Events events;
    const bool busy = receive(&events);
    const TimePoint due = maintain(&events);
    lock.unlock();
    report(events);
    released_.take();
    if (busy) {
      sleep_.note_busy();
    } else {
      sleep_.sleep(due, [this] { return released_.any(); });
    }
    lock.lock();
  }
}

void RpcAgent::report(const Events& events) {
  for (const auto& [rank, why] : events.returned) core_.lost(rank, why);
  for (const auto& message : events.received) {
    core_.received(message->from, message->payload, message->buffers, message);
  }
  for (const Events::Failed& each : events.failed) core_.failed(each.to, each.id, each.why);
  for (const auto& [rank, why] : events.lost) core_.lost(rank, why);
}

void RpcAgent::abort(const sdk::Failure& why) noexcept {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    thread.swap(thread_);
    if (!thread.joinable()) return;  // a second call
    if (!ended_) ended_.emplace(why);
    sleep_.wake();
  }
  thread.join();
  sockets_.close({}, {});
  sockets_.shut_down();  // libzmq then holds no buffer
  for (Peer& peer : peers_) peer.unconfirmed.clear();
  released_.take();
}

}  // namespace backplane::zmq
