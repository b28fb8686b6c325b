// SPDX-License-Identifier: Apache-2.0
#include "channel.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace backplane::nccl {
namespace {

// CUDA blocks a thread that adds to a stream with some thousand entries; the poller must stay free for an abort.
constexpr size_t kMostMessageLaunches = 64;  // in a stream, and messages in one of them

}  // namespace

Channel::Channel(const Config& config, bool is_sender, const ncclUniqueId& id)
    : c_(config),
      is_sender_(is_sender),
      stream_(config.api, config.device),
      comm_(config.api, config.device, id, is_sender ? 0 : 1, 2, config.max_ctas) {}

bool Channel::progress() {
  bool moved = false;
  while ((issued_ || (!waiting_.empty() && moving_.size() < kMostMessageLaunches)) && comm_.ready()) {
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
  while (!moving_.empty() && moving_.front().moved->passed()) {
    comm_.ready();  // what NCCL gave up has passed, too: then this throws
    const Launch launch = std::move(moving_.front());
    moving_.pop_front();
    alone_since_.reset();
    for (const Moving& each : launch.messages) {
      const Transfer& t = each.transfer;
      if (t.is_host && !is_sender_) std::memcpy(t.data, each.pinned.data(), t.bytes);
      t.done->finish();
    }
    finished = true;
  }
  return finished;
}

// The first that waits, and those of its batch behind it.
void Channel::take_waiting() {
  issued_.emplace();
  const std::shared_ptr<const Event> after = waiting_.front().after;
  do {
    issued_->messages.emplace_back();  // without memory it stays where it was
    issued_->messages.back().transfer = std::move(waiting_.front());
    waiting_.pop_front();
  } while (after && !waiting_.empty() && waiting_.front().after == after &&
           issued_->messages.size() < kMostMessageLaunches);
}

void Channel::stage(Moving& moving) {
  const Transfer& t = moving.transfer;
  if (!t.is_host) return;
  moving.staged = Piece(c_.pool, t.bytes);
  moving.pinned = Piece(c_.pool, t.bytes, Where::kHost);
  if (!is_sender_) return;
  std::memcpy(moving.pinned.data(), t.data, t.bytes);
  check(c_.api,
        c_.api.cuda.memcpy_async(moving.staged.data(), moving.pinned.data(), t.bytes, cudaMemcpyHostToDevice,
                                 stream_.get()),
        "staging a message");
}

void Channel::issue() {
  take_waiting();
  const OnDevice here(c_.api, c_.device);
  const Event* const after = issued_->messages.front().transfer.after.get();
  if (after != nullptr) {
    check(c_.api, c_.api.cuda.stream_wait_event(stream_.get(), after->get(), 0), "ordering a message");
  }
  for (Moving& each : issued_->messages) stage(each);
  comm_.issue([this](ncclComm_t comm) {
    for (const Moving& each : issued_->messages) {
      const uint64_t bytes = each.transfer.bytes;
      check(c_.api,
            is_sender_ ? c_.api.nccl.send(each.data(), bytes, ncclUint8, 1, comm, stream_.get())
                       : c_.api.nccl.recv(each.data(), bytes, ncclUint8, 0, comm, stream_.get()),
            is_sender_ ? "send" : "recv", comm);
    }
  });
}

void Channel::enter_stream() {
  const OnDevice here(c_.api, c_.device);
  for (const Moving& each : issued_->messages) {
    const Transfer& t = each.transfer;
    if (!t.is_host || is_sender_) continue;
    check(c_.api,
          c_.api.cuda.memcpy_async(each.pinned.data(), each.staged.data(), t.bytes, cudaMemcpyDeviceToHost,
                                   stream_.get()),
          "bringing back a message");
  }
  issued_->moved = std::make_shared<const Event>(c_.pool, stream_.get());
  for (const Moving& each : issued_->messages) {
    if (!each.transfer.is_host) each.transfer.done->enter(issued_->moved);
  }
  moving_.push_back(std::move(*issued_));
  issued_.reset();
}

std::optional<std::chrono::steady_clock::time_point> Channel::waits_since() {
  if (!busy()) return {};
  if (!alone_since_) {
    const Event* const after = moving_.empty() ? nullptr : moving_.front().messages.front().transfer.after.get();
    if (after != nullptr && !after->passed()) return {};
    alone_since_ = std::chrono::steady_clock::now();
  }
  return alone_since_;
}

void Channel::look_once_more() noexcept {
  try {
    finish_moved();
  } catch (const std::exception&) {
    // Then nothing of it is known to be done.
  }
}

void Channel::fail(const sdk::Failure& why) noexcept {
  for (const Transfer& transfer : waiting_) transfer.done->fail(why);
  const auto end = [&why](const Launch& launch) {
    for (const Moving& each : launch.messages) each.transfer.done->fail(why);
  };
  if (issued_) end(*issued_);
  std::for_each(moving_.begin(), moving_.end(), end);
  waiting_.clear();
  issued_.reset();
  moving_.clear();
}

}  // namespace backplane::nccl
