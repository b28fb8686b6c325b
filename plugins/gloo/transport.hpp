// SPDX-License-Identifier: Apache-2.0
//
// The connections of one group: gloo's TCP transport context with the pairs and buffers of this plugin, and the gloo
// context on top of it.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>

#include "address.hpp"
#include "buffer.hpp"
#include "handshake.hpp"
#include "listener.hpp"
#include "progress.hpp"

namespace backplane::gloo {

class Pair;

// Buffer::order() of a receive; kLast if the buffer has been destroyed.
uint64_t order_of(const WeakBuffer& receive);

class Context final : public ::gloo::transport::tcp::Context {
 public:
  Context(std::shared_ptr<::gloo::transport::tcp::Device> device, std::shared_ptr<const Health> health, int rank,
          int size);
  ~Context() override;

  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override;
  // For gloo's algorithms: a buffer with Lengths::kExact and the deadline of the DeadlineScope.
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, size_t size) override;

  Pair& pair(int peer);
  const Health& health() const { return *health_; }
  // What this rank publishes. Constant once join() has begun to listen.
  const Endpoint& endpoint() const { return endpoint_; }
  // The address that this rank listens on, as text.
  const std::string& own_address() const { return own_address_; }

  // Listens, publishes this rank's endpoint in the store, and waits for those of all other ranks, until `deadline`.
  // Connects to none. Call once.
  void join(const base::Deadline& deadline, const Address& where);
  // Connects to a few ranks if there is no connection and none is being opened, so that a receive from any source
  // notices that all other ranks have left. Throws sdk::Failure.
  void keep_a_connection();
  // The failure of an operation that needs a rank whose connection has ended, or could not be opened.
  sdk::Failure lost(int peer, const std::string& detail);
  // Waits up to 1 s until the peers' kernels have received all data. Closing a connection on which data of the peer
  // arrives would discard unsent data.
  void flush();
  // Initiates closing all connections. Any thread, does not block.
  void shut_down() noexcept;

  // The first rank whose connection ended, -1 if none has. Does not change afterwards.
  int first_lost();
  bool all_lost() const { return lost_.load(std::memory_order_acquire) == size - 1; }
  // Called by the pair under its lock.
  void record_loss(int peer) noexcept;

  ProgressEngine& engine() { return *engine_; }

  // Removes a receive from any source. Returns false if a message has already matched it.
  bool withdraw_any_source(const Buffer& buffer, uint64_t slot);
  // Gives a message without a receive to a receive from any source. Returns false if there is none.
  bool offer_to_any_source(uint64_t slot, int source, const char* data, uint64_t bytes);

  // Keeps the order of submission between receives from any source and receives that name their source. gloo requests a
  // message for a receive from any source only after the peer has announced it, so a younger receive that names the
  // source may have requested that message first. `posted` is such a receive, and its message begins to arrive. Swaps
  // it with an older receive from any source, if there is one. Called by the pair under its lock.
  using Posted = std::tuple<WeakBuffer, size_t, size_t>;
  void swap_with_any_source(uint64_t slot, int source, Posted& posted);
  // Counts the receives that may require a swap: those from any source, and those that they displaced.
  void begin_reordering() { reordering_.fetch_add(1); }
  void end_reordering() { reordering_.fetch_sub(1); }
  bool may_reorder() const { return reordering_.load() > 0; }

 private:
  const std::shared_ptr<const Health> health_;
  Endpoint endpoint_ = {.token = make_token(), .answer = make_token(), .world_size = size};
  std::string own_address_;
  std::unique_ptr<ProgressEngine> engine_;
  std::unique_ptr<Listener> listener_;
  std::atomic<int> reordering_ = 0;
  std::atomic<int> first_lost_ = -1;
  std::atomic<int> lost_ = 0;
};

// The context that gloo's algorithms use, around the transport context.
class Mesh final : public ::gloo::Context {
 public:
  Mesh(std::shared_ptr<::gloo::transport::tcp::Device> device, std::shared_ptr<gloo::Context> transport);
};

}  // namespace backplane::gloo
