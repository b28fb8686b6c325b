// SPDX-License-Identifier: Apache-2.0
//
// The sending side of a pair: writes of gloo's operations, and cancelled sends. Differs from gloo in SIGPIPE, errors
// and drivers. All functions but detach() require the pair's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "cancelled.hpp"
#include "link.hpp"

namespace backplane::gloo {

class Sending {
 public:
  using Op = GlooPair::Op;

  Sending(GlooPair& pair, Link& link, std::shared_ptr<const Health> health)
      : pair_(pair), link_(link), detached_(std::move(health)) {}

  // Writes as much of an operation as the socket takes. Returns false if some is left: gloo then queues it and lets its
  // thread write the rest. If the calling thread drives, notifications wait for its next write, and what is left is
  // queued here. So is all before the connection is established.
  bool write(Op& op, bool is_driver);
  // Returns true if nothing is left.
  bool write_queued();
  bool is_empty() const { return pair_.tx_.empty() && pending_notifications_.empty(); }

  // Cancels a send: data not yet written are copied, up to 1 GiB, and sent when the peer requests them. Ends the
  // connection if they are more, or if there is no memory for the copy, because the peer has been told of the message.
  void detach(const Buffer& buffer, uint64_t slot) noexcept;

  // Fails the operations that gloo has begun to write.
  void fail(const std::exception_ptr& error) noexcept;

 private:
  bool write_notifications();
  void detach_queued(const Buffer& buffer, uint64_t slot);

  GlooPair& pair_;
  Link& link_;
  std::string pending_notifications_;  // sent with the driver's next write
  DetachedSends detached_;
};

}  // namespace backplane::gloo
