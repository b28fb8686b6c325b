// SPDX-License-Identifier: Apache-2.0
//
// Messages over send and recv of torch, all with one tag: torch's know neither lengths nor any tag, and cannot be
// cancelled, so that sdk::Messenger matches messages here. A frame travels as a message of kFirst bytes, which begins
// with the frame's size, and one with what remains of the frame.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backplane/base/deadline.hpp"
#include "backplane/sdk/messenger.hpp"
#include "torch_group.hpp"

namespace backplane::c10d {

class Messages : public std::enable_shared_from_this<Messages> {
 public:
  // Called once per peer that is lost, on a thread of this object.
  using OnLost = std::function<void(const sdk::Failure& why, bool in_order)>;

  Messages(std::shared_ptr<TorchGroup> torch, OnLost on_lost);

  // Starts a sender and a receiver for each peer. Throws BP_RESOURCE; then call stop.
  void start();
  sdk::Messenger& messenger() { return messenger_; }

  // Lets the senders carry what is queued and take leave of their peers. Blocks up to the deadline.
  void leave(const base::Deadline& deadline);
  // Makes all threads end as soon as their call of torch returns. Does not block.
  void stop() noexcept;
  // Joins the threads. Those that do not end by the deadline are detached.
  void join(const base::Deadline& deadline);

 private:
  struct Peer {
    bool has_frame = false;
    bool has_left = false;  // its sender has ended
  };

  void run(int32_t peer, void (Messages::*body)(int32_t));
  void send_all(int32_t peer);
  void send_frame(int32_t peer, const sdk::Messenger::Bytes& frame);
  void receive_all(int32_t peer);
  void lose(int32_t peer, const sdk::Failure& why, bool in_order);

  const std::shared_ptr<TorchGroup> torch_;
  const OnLost on_lost_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::vector<std::thread> threads_;
  size_t running_ = 0;
  bool leaving_ = false;
  bool stopped_ = false;
  sdk::Messenger messenger_;
};

}  // namespace backplane::c10d
