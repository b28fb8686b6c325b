// SPDX-License-Identifier: Apache-2.0
//
// The socket on which a rank of a group listens for all others, for the life of the group. Connections whose hello is
// right are handed to the pair of their rank; others are closed.
#pragma once

#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>

#include <mutex>
#include <vector>

#include "backplane/base/descriptor.hpp"
#include "backplane/base/log_limit.hpp"
#include "handshake.hpp"

namespace backplane::gloo {

class Context;

class Listener final : private ::gloo::transport::tcp::Handler {
 public:
  // Listens on a free port. The pairs of `owner` must exist. Throws sdk::Failure.
  Listener(Context& owner, ::gloo::transport::tcp::Device& device, const ::gloo::transport::tcp::attr& where,
           const Token& token);
  // Closes the socket and all connections that are not handed over. Returns once gloo's thread no longer uses it.
  ~Listener() override;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const sockaddr_storage& address() const { return address_; }

 private:
  // A connection whose hello has not arrived.
  struct Candidate {
    base::Descriptor socket;
    Hello hello;
    size_t arrived = 0;
  };
  enum class Result { kIncomplete, kRank, kEnded, kRefused };  // kEnded: it sent nothing

  void handleEvents(int events) override;
  bool accept_one();
  void read_all();
  Result read(Candidate& candidate) const;
  void unregister(const base::Descriptor& socket) noexcept;

  Context& owner_;
  ::gloo::transport::tcp::Device& device_;
  const Token token_;
  const size_t most_;  // candidates at the same time
  base::Descriptor socket_;
  sockaddr_storage address_ = {};
  base::LogLimit refused_;
  base::LogLimit exhausted_;
  std::mutex mutex_;
  // Guarded by mutex_.
  bool is_closed_ = false;
  std::vector<Candidate> candidates_;  // the oldest first
};

}  // namespace backplane::gloo
