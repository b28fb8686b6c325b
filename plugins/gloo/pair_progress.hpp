// SPDX-License-Identifier: Apache-2.0
//
// Which thread moves the bytes of a pair, gloo's or the driver (progress.hpp), and the hand-over between them.
#pragma once

#include "link.hpp"
#include "progress.hpp"
#include "sending.hpp"

namespace backplane::gloo {

class PairProgress {
 public:
  PairProgress(GlooPair& pair, const Context& owner, Link& link, Sending& sending)
      : pair_(pair), owner_(owner), link_(link), sending_(sending) {}

  // For the driver, which alone may call these. They take the pair's lock.
  //
  // Takes the connection from gloo's thread. Returns its descriptor, -1 if it is not connected.
  int take();
  bool is_taken() const { return is_taken_; }
  // Reads and writes without blocking. After kEnded the connection must be given back.
  enum class Progress { kIdle, kMoved, kBlocked, kEnded };  // kBlocked: more to write
  Progress advance();
  bool flush();  // true: nothing is left to write
  void give_back();

  // For the pair, under its lock.
  //
  // Whether the calling thread drives this connection.
  bool is_driver() const { return is_taken_ && ProgressScope::drives(owner_); }
  // Moves bytes on gloo's thread.
  void handle(int events);

 private:
  void move(int events);

  GlooPair& pair_;
  const Context& owner_;
  Link& link_;
  Sending& sending_;
  bool is_taken_ = false;  // written only by the driver
};

}  // namespace backplane::gloo
