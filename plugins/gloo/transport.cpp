// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include "address_exchange.hpp"
#include "pair.hpp"
#include "tcp_device.hpp"

namespace backplane::gloo {
namespace {

constexpr std::chrono::seconds kFlushTime{1};
constexpr std::chrono::microseconds kFlushPoll{200};  // no event reports an empty send queue
constexpr int kListenAttempts = 10;
constexpr int kOpenedAtOnce = 4;  // connections

}  // namespace

uint64_t order_of(const WeakBuffer& receive) {
  const BufferRef buffer(receive);
  return buffer ? buffer->order() : Buffer::kLast;
}

Context::Context(std::shared_ptr<::gloo::transport::tcp::Device> device, std::shared_ptr<const Health> health, int rank,
                 int size)
    : ::gloo::transport::tcp::Context(std::move(device), rank, size), health_(std::move(health)) {
  setTimeout(std::chrono::milliseconds::zero());
  engine_ = std::make_unique<ProgressEngine>(*device_);
}

// Shuts down all connections at once, because gloo closes one per turn of its loop, 10 ms each. Destroying the engine
// waits for one turn, after which gloo's thread no longer uses the closed pairs. Pairs that are still open wait for a
// turn themselves.
Context::~Context() {
  listener_.reset();  // first, because gloo's thread waits for the lock of a pair when it hands over a connection
  engine_->add_passive_waiter();
  shut_down();
  for (const auto& pair : pairs_) {
    if (pair) static_cast<Pair*>(pair.get())->connection().wait_closed();
  }
  engine_.reset();
  pairs_.clear();
}

std::unique_ptr<::gloo::transport::Pair>& Context::createPair(int peer) {
  std::unique_ptr<::gloo::transport::Pair>& slot = pairs_[static_cast<size_t>(peer)];
  for (int attempt = 0; attempt < kListenAttempts; ++attempt) {
    auto pair = std::make_unique<Pair>(*this, device_.get(), health_, peer);
    const bool is_unused = pair->connection().is_unused();
    slot = std::move(pair);
    if (is_unused) return slot;
  }
  throw sdk::Failure(BP_RESOURCE, "gloo: another process connects to each port as soon as it is opened");
}

std::unique_ptr<::gloo::transport::UnboundBuffer> Context::createUnboundBuffer(void* data, size_t size) {
  return std::make_unique<Buffer>(shared_from_this(), health_, data, size, Buffer::Lengths::kExact,
                                  DeadlineScope::current());
}

Pair& Context::pair(int peer) { return *static_cast<Pair*>(pairs_[static_cast<size_t>(peer)].get()); }

void Context::join(const base::Deadline& deadline, const Address& where) {
  own_address_ = where.text;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) createPair(peer);
  }
  listener_ = std::make_unique<Listener>(*this, *device_, where.attr, endpoint_.token);
  set_address(endpoint_, listener_->address());
  const AddressExchange addresses(health_->host, rank, size);
  addresses.publish(endpoint_, deadline);
  const std::vector<Endpoint> endpoints = addresses.await_all(deadline);
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) pair(peer).connection().set_endpoint(endpoints[static_cast<size_t>(peer)]);
  }
}

void Context::keep_a_connection() {
  for (const auto& pair : pairs_) {
    if (pair && static_cast<Pair*>(pair.get())->connection().is_used_and_open()) return;
  }
  int opened = 0;
  for (int peer = 0; peer < size && opened < kOpenedAtOnce; ++peer) {
    if (peer == rank || pair(peer).connection().has_ended()) continue;
    pair(peer).connection().open();
    ++opened;
  }
}

sdk::Failure Context::lost(int peer, const std::string& detail) {
  if (peer < 0 || pair(peer).connection().was_connected()) return connection_lost(peer, detail);
  return sdk::peer_lost(peer, detail);
}

void Context::flush() {
  const Clock::time_point deadline = Clock::now() + kFlushTime;
  for (const auto& pair : pairs_) {
    while (pair && !static_cast<Pair*>(pair.get())->connection().is_flushed() && Clock::now() < deadline) {
      std::this_thread::sleep_for(kFlushPoll);
    }
  }
}

void Context::shut_down() noexcept {
  for (const auto& pair : pairs_) {
    if (pair) static_cast<Pair*>(pair.get())->connection().shut_down();
  }
}

int Context::first_lost() {
  for (const auto& pair : pairs_) {
    if (pair) static_cast<Pair*>(pair.get())->connection().await_recorded();
  }
  return first_lost_.load(std::memory_order_acquire);
}

void Context::record_loss(int peer) noexcept {
  int none = -1;
  first_lost_.compare_exchange_strong(none, peer);
  lost_.fetch_add(1);
}

bool Context::withdraw_any_source(const Buffer& buffer, uint64_t slot) {
  const std::lock_guard lock(mutex_);
  const auto pending = pendingRecv_.find(slot);
  if (pending == pendingRecv_.end()) return false;
  auto& queue = pending->second;
  const auto found = std::find_if(queue.begin(), queue.end(), [&buffer](const pendingRecvTuple& entry) {
    const BufferRef target(std::get<0>(entry));
    return target && target.get() == &buffer;
  });
  if (found == queue.end()) return false;
  queue.erase(found);
  if (queue.empty()) pendingRecv_.erase(pending);
  return true;
}

bool Context::offer_to_any_source(uint64_t slot, int source, const char* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  WeakBuffer receiver;
  size_t offset = 0;
  size_t room = 0;
  while (findRecvFromAny(slot, source, &receiver, &offset, &room)) {
    const BufferRef buffer(receiver);
    if (!buffer) continue;
    buffer->deliver(data, bytes, source);
    return true;
  }
  return false;
}

void Context::swap_with_any_source(uint64_t slot, int source, Posted& posted) {
  const std::lock_guard lock(mutex_);
  const auto pending = pendingRecv_.find(slot);
  if (pending == pendingRecv_.end()) return;
  auto& queue = pending->second;
  const auto older = std::find_if(queue.begin(), queue.end(), [source](const pendingRecvTuple& entry) {
    return std::get<3>(entry).contains(source);
  });
  const uint64_t order = order_of(std::get<0>(posted));
  if (older == queue.end() || order == Buffer::kLast || order_of(std::get<0>(*older)) >= order) return;
  const Posted from_any(std::get<0>(*older), std::get<1>(*older), std::get<2>(*older));
  const pendingRecvTuple named(std::get<0>(posted), std::get<1>(posted), std::get<2>(posted), {source});
  queue.erase(older);
  queue.insert(std::find_if(queue.begin(), queue.end(),
                            [order](const pendingRecvTuple& entry) { return order_of(std::get<0>(entry)) > order; }),
               named);
  const BufferRef buffer(std::get<0>(named));
  if (buffer && !buffer->is_displaced()) {
    buffer->displace();
    begin_reordering();
  }
  posted = from_any;
}

Mesh::Mesh(std::shared_ptr<::gloo::transport::tcp::Device> device, std::shared_ptr<gloo::Context> transport)
    : ::gloo::Context(transport->rank, transport->size) {
  device_ = std::move(device);
  transportContext_ = std::move(transport);
}

}  // namespace backplane::gloo
