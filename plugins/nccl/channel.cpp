// SPDX-License-Identifier: Apache-2.0
#include "channel.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace backplane::nccl {
namespace {

// Launches in a stream, and messages in a launch. CUDA blocks a thread that adds to a stream with some thousand
// entries, and the poller must stay free for an abort.
constexpr size_t kMaxMessageLaunches = 64;

}  // namespace

Channel::Channel(const Config& config, bool is_sender, const ncclUniqueId& id)
    : c_(config),
      is_sender_(is_sender),
      stream_(config.api, config.device),
      comm_(config.api, config.device, id, is_sender ? 0 : 1, 2, config.max_ctas) {}

bool Channel::progress() {
  bool moved = false;
  while ((issued_ || (!waiting_.empty() && launched_.size() < kMaxMessageLaunches)) && comm_.ready()) {
    if (issued_) {
      record_end();
    } else {
      issue();
    }
    moved = true;
  }
  return finish_passed() || moved;
}

bool Channel::finish_passed() {
  bool finished = false;
  while (!launched_.empty() && launched_.front().end->passed()) {
    comm_.ready();  // throws if NCCL has aborted the launch: its event passes nevertheless
    const Launch launch = std::move(launched_.front());
    launched_.pop_front();
    waiting_since_.reset();
    for (const Message& each : launch.messages) {
      const Transfer& t = each.transfer;
      if (t.done->is_host && !is_sender_) std::memcpy(t.data, each.staging.host.data(), t.bytes);
      t.done->finish();
    }
    finished = true;
  }
  return finished;
}

// The first waiting message and those of its batch that follow it.
void Channel::take_waiting() {
  issued_.emplace();
  const std::shared_ptr<const Event> after = waiting_.front().done->after;
  do {
    issued_->messages.emplace_back();  // on out-of-memory, the message stays in waiting_
    issued_->messages.back().transfer = std::move(waiting_.front());
    waiting_.pop_front();
  } while (after && !waiting_.empty() && waiting_.front().done->after == after &&
           issued_->messages.size() < kMaxMessageLaunches);
}

void Channel::stage(Message& message) {
  const Transfer& t = message.transfer;
  if (!t.done->is_host) return;
  message.staging = StagingBuffer(c_.pool, t.bytes);
  if (is_sender_) message.staging.copy_in(c_.api, t.data, t.bytes, stream_.get());
}

void Channel::issue() {
  take_waiting();
  const OnDevice here(c_.api, c_.device);
  const Event* const after = issued_->messages.front().transfer.done->after.get();
  if (after != nullptr) {
    check(c_.api, c_.api.cuda.stream_wait_event(stream_.get(), after->get(), 0), "ordering a message");
  }
  for (Message& each : issued_->messages) stage(each);
  comm_.issue([this](ncclComm_t comm) {
    for (const Message& each : issued_->messages) {
      const uint64_t bytes = each.transfer.bytes;
      check(c_.api,
            is_sender_ ? c_.api.nccl.send(each.data(), bytes, ncclUint8, 1, comm, stream_.get())
                       : c_.api.nccl.recv(each.data(), bytes, ncclUint8, 0, comm, stream_.get()),
            is_sender_ ? "send" : "recv", comm);
    }
  });
}

void Channel::record_end() {
  const OnDevice here(c_.api, c_.device);
  for (const Message& each : issued_->messages) {
    const Transfer& t = each.transfer;
    if (t.done->is_host && !is_sender_) each.staging.copy_out(c_.api, t.bytes, stream_.get());
  }
  issued_->end = std::make_shared<const Event>(c_.pool, stream_.get());
  if (launched_.empty()) waiting_since_.reset();
  for (const Message& each : issued_->messages) {
    if (!each.transfer.done->is_host) each.transfer.done->set_event(issued_->end);
  }
  launched_.push_back(std::move(*issued_));
  issued_.reset();
}

// The oldest message. Requires busy().
const Transfer& Channel::first() const {
  if (!launched_.empty()) return launched_.front().messages.front().transfer;
  return issued_ ? issued_->messages.front().transfer : waiting_.front();
}

std::optional<std::chrono::steady_clock::time_point> Channel::waiting_since() {
  if (!busy()) return {};
  if (!waiting_since_) {
    const Event* const after = first().done->after.get();
    if (after != nullptr && !after->passed()) return {};
    waiting_since_ = std::chrono::steady_clock::now();
  }
  return waiting_since_;
}

void Channel::collect_finished() noexcept {
  try {
    finish_passed();
  } catch (const std::exception&) {
    // It is unknown which launches are complete.
  }
}

void Channel::fail(const sdk::Failure& why) noexcept {
  for (const Transfer& transfer : waiting_) transfer.done->fail(why);
  const auto end = [&why](const Launch& launch) {
    for (const Message& each : launch.messages) each.transfer.done->fail(why);
  };
  if (issued_) end(*issued_);
  std::for_each(launched_.begin(), launched_.end(), end);
  waiting_.clear();
  issued_.reset();
  launched_.clear();
}

}  // namespace backplane::nccl
