// SPDX-License-Identifier: Apache-2.0
#include "channel.hpp"

#include <cstring>
#include <utility>

namespace backplane::nccl {

Channel::Channel(const Config& config, bool is_sender, const ncclUniqueId& id)
    : c_(config),
      is_sender_(is_sender),
      stream_(config.api, config.device),
      comm_(config.api, config.device, id, is_sender ? 0 : 1, 2, config.max_ctas) {}

bool Channel::progress() {
  bool moved = false;
  while ((issued_ || !waiting_.empty()) && comm_.ready()) {
    if (issued_) {
      enter_stream();
    } else {
      issue();
    }
    moved = true;
  }
  return finish_moved() || moved;
}

bool Channel::finish_moved() {
  bool finished = false;
  while (!moving_.empty() && moving_.front().moved.passed()) {
    comm_.ready();  // what NCCL gave up has passed, too: then this throws
    const Transfer& t = moving_.front().transfer;
    if (t.is_host && !is_sender_) std::memcpy(t.data, moving_.front().pinned.data(), t.bytes);
    const std::shared_ptr<sdk::Completion> done = t.done;
    moving_.pop_front();
    alone_since_.reset();
    done->finish();
    finished = true;
  }
  return finished;
}

void Channel::issue() {
  issued_.emplace(Moving{std::move(waiting_.front()), {}, {}, {}});
  waiting_.pop_front();
  const Transfer& t = issued_->transfer;
  const OnDevice here(c_.api, c_.device);
  if (t.after) check(c_.api, c_.api.cuda.stream_wait_event(stream_.get(), t.after.get(), 0), "ordering a message");
  void* data = t.data;
  if (t.is_host) {
    issued_->staged = Piece(c_.pool, t.bytes);
    issued_->pinned = Piece(c_.pool, t.bytes, Where::kHost);
    data = issued_->staged.data();
    if (is_sender_) {
      std::byte* const pinned = issued_->pinned.data();
      std::memcpy(pinned, t.data, t.bytes);
      check(c_.api, c_.api.cuda.memcpy_async(data, pinned, t.bytes, cudaMemcpyHostToDevice, stream_.get()),
            "staging a message");
    }
  }
  comm_.issue([this, data, &t](ncclComm_t comm) {
    check(c_.api,
          is_sender_ ? c_.api.nccl.send(data, t.bytes, ncclUint8, 1, comm, stream_.get())
                     : c_.api.nccl.recv(data, t.bytes, ncclUint8, 0, comm, stream_.get()),
          is_sender_ ? "send" : "recv", comm);
  });
}

void Channel::enter_stream() {
  const OnDevice here(c_.api, c_.device);
  const Transfer& t = issued_->transfer;
  if (t.is_host && !is_sender_) {
    check(c_.api,
          c_.api.cuda.memcpy_async(issued_->pinned.data(), issued_->staged.data(), t.bytes, cudaMemcpyDeviceToHost,
                                   stream_.get()),
          "bringing back a message");
  }
  issued_->moved = Event(c_.pool, stream_.get());
  moving_.push_back(std::move(*issued_));
  issued_.reset();
}

std::optional<std::chrono::steady_clock::time_point> Channel::waits_since() {
  if (!busy()) return {};
  if (!alone_since_) {
    if (!moving_.empty() && moving_.front().transfer.after && !moving_.front().transfer.after.passed()) return {};
    alone_since_ = std::chrono::steady_clock::now();
  }
  return alone_since_;
}

void Channel::look_once_more() noexcept {
  try {
    finish_moved();
  } catch (const sdk::Failure&) {
    // Then nothing of it is known to be done.
  }
}

bool Channel::is_still() noexcept {
  try {
    const OnDevice here(c_.api, c_.device);
    if (!last_) last_ = Event(c_.pool, stream_.get());
    return last_.passed();
  } catch (const sdk::Failure&) {
    return true;  // the device has failed: it does nothing any more
  }
}

void Channel::fail(const sdk::Failure& why) noexcept {
  for (const Transfer& transfer : waiting_) transfer.done->fail(why);
  if (issued_) issued_->transfer.done->fail(why);
  for (const Moving& each : moving_) each.transfer.done->fail(why);
  waiting_.clear();
  issued_.reset();
  moving_.clear();
}

}  // namespace backplane::nccl
