// SPDX-License-Identifier: Apache-2.0
//
// gloo's TCP pair with its state open to the parts of Pair. libgloo keeps this state protected.
#pragma once

#include <gloo/transport/tcp/pair.h>

#include <tuple>

#include "buffer.hpp"

namespace backplane::gloo {

class GlooPair : public ::gloo::transport::tcp::Pair {
 public:
  using Base = ::gloo::transport::tcp::Pair;
  using Op = ::gloo::transport::tcp::Op;
  using Posted = Base::UnboundBufferOp;  // a send or a receive: buffer, offset, bytes

  using Base::Base;

  using Base::CLOSED;
  using Base::CONNECTED;
  using Base::CONNECTING;
  using Base::cv_;
  using Base::device_;
  using Base::ex_;
  using Base::fd_;
  using Base::INITIALIZING;
  using Base::LISTENING;
  using Base::m_;     // guards everything below
  using Base::rank_;  // of the peer
  using Base::state_;

  using Base::localPendingRecv_;  // receives, by slot, whose messages have been requested
  using Base::localPendingSend_;  // sends, by slot, that the peer has been told of
  using Base::rx_;                // the message that arrives
  using Base::tx_;                // what the socket did not take at once

  using Base::changeState;
  using Base::handleConnected;
  using Base::prepareWrite;
  using Base::read;
  using Base::signalException;
  using Base::write;
  using Base::writeComplete;

  // Set by Pair's constructor, because gloo's thread may call the pair before that has run.
  bool is_constructed_ = false;
};

// Whether a posted operation uses this buffer.
inline bool is_for(const GlooPair::Posted& posted, const Buffer& buffer) {
  const BufferRef target(std::get<0>(posted));
  return target && target.get() == &buffer;
}

}  // namespace backplane::gloo
