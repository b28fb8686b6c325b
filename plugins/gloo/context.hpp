// SPDX-License-Identifier: Apache-2.0
//
// The connections of one group: gloo's TCP transport context over our pairs and buffers, and the mesh that connects it.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>

#include "buffer.hpp"
#include "drive.hpp"

namespace backplane::gloo {

class Pair;

// Buffer::age() of a receive; the youngest if it is gone.
uint64_t age_of(const Held& receive);

class Context final : public ::gloo::transport::tcp::Context {
 public:
  Context(std::shared_ptr<::gloo::transport::tcp::Device> device, std::shared_ptr<const Watch> watch, int rank,
          int size);
  ~Context() override;

  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override;
  // For gloo's algorithms: a buffer of exact lengths with the deadline of the DeadlineScope.
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, size_t size) override;

  Pair& pair(int peer);

  // Publishes this rank's addresses in the store and connects to every other rank, until `deadline`.
  void connect(Clock::time_point deadline);
  // Waits until the peers' kernels have all that was sent, at most a second: a connection that is closed while messages
  // of the peer come in drops what it has not delivered.
  void flush();
  // Closes all connections soon, without waiting. Any thread.
  void hang_up() noexcept;

  // The first rank whose connection ended, -1 if none has. Stands even if more ended later.
  int first_lost();
  bool all_lost() const { return lost_.load(std::memory_order_acquire) == size - 1; }
  // Called by the pair, under its lock.
  void lose(int peer) noexcept;

  Helm& helm() { return *helm_; }

  // Takes back a receive from any source that no message has met yet. False: one has.
  bool withdraw_any(const Buffer& buffer, uint64_t slot);
  // Gives a message that nobody waits for any more to a receive from any source. False: there is none for it.
  bool offer_any(uint64_t slot, int source, const char* data, uint64_t bytes);

  // The messages of a slot go to its receives in the order of submission. For a receive from any source gloo asks for a
  // message only once one is announced, so a younger receive that names the source may have asked for it before.
  // `posted` has, and its message begins to arrive: if an older receive from any source is there, the two change
  // places. Called by the pair, under its lock.
  using Posted = std::tuple<Held, size_t, size_t>;
  void exchange_any(uint64_t slot, int source, Posted& posted);
  // Receives because of which the above may have to be done: those from any source, and those that they displaced.
  void expect_disorder() { disordering_.fetch_add(1); }
  void expect_order() { disordering_.fetch_sub(1); }
  bool is_disorderly() const { return disordering_.load() > 0; }

 private:
  const std::shared_ptr<const Watch> watch_;
  std::unique_ptr<Helm> helm_;
  std::atomic<int> disordering_ = 0;
  std::atomic<int> first_lost_ = -1;
  std::atomic<int> lost_ = 0;
};

// What gloo's algorithms call the context: our transport inside gloo's wrapper.
class Mesh final : public ::gloo::Context {
 public:
  Mesh(std::shared_ptr<::gloo::transport::tcp::Device> device, std::shared_ptr<gloo::Context> transport);
};

}  // namespace backplane::gloo
