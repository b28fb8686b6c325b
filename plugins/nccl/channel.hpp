// SPDX-License-Identifier: Apache-2.0
//
// One direction between two ranks: a communicator of the two and a stream, in which one message follows the other. Both
// ends enter the same messages in the same order, so that a channel never waits for another one. Messages of a batch
// that wait at the same time go as one group of NCCL, whatever the other end makes of them: NCCL matches sends and
// receives of two ranks by their order alone.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backplane/sdk/completion.hpp"
#include "communicator.hpp"
#include "device.hpp"

namespace backplane::nccl {

// The end of a message and, before that, the point in a stream that stands for it. Any thread.
class MessageEnd : public sdk::Completion {
 public:
  void enter(std::shared_ptr<const Event> point) {
    const std::lock_guard lock(mutex_);
    point_ = std::move(point);
  }
  std::shared_ptr<const Event> point() const {  // null: it is in no stream yet, or is host memory at this end
    const std::lock_guard lock(mutex_);
    return point_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Event> point_;
};

// A message at one end.
struct Transfer {
  void* data = nullptr;  // the caller's
  uint64_t bytes = 0;
  bool is_host = false;  // stage it
  // What the caller's stream held when the message was submitted: one for all messages of a batch.
  std::shared_ptr<const Event> after;
  std::shared_ptr<MessageEnd> done;
};

// Used by one thread.
class Channel {
 public:
  struct Config {
    const Api& api;
    int device;
    Pool& pool;
    int max_ctas;
  };

  Channel(const Config& config, bool is_sender, const ncclUniqueId& id);

  // Without memory it throws, and has taken nothing.
  void enter(Transfer&& transfer) { waiting_.push_back(std::move(transfer)); }
  // Gets on with what was entered, as far as it goes. True if something happened. Throws what NCCL reports.
  bool progress();
  bool busy() const { return !waiting_.empty() || issued_ || !moving_.empty(); }
  // Since when the first message has been waiting for the other end; nothing: there is none, or it waits for what the
  // caller's stream held before it.
  std::optional<std::chrono::steady_clock::time_point> waits_since();

  // The end, one after the other: what is done by now stays done; the communicator is aborted; has the device let go of
  // all buffers?; what is not done fails.
  void look_once_more() noexcept;
  void abort() noexcept { comm_.abort(); }
  bool is_still() noexcept { return stream_.is_still(c_.pool, last_); }
  void fail(const sdk::Failure& why) noexcept;
  // The other end: in order.
  void close(int64_t timeout_ns) { comm_.close(timeout_ns); }

 private:
  struct Moving {
    Transfer transfer;
    Piece staged;  // host buffers: on the device ...
    Piece pinned;  // ... and on the way there
    void* data() const { return transfer.is_host ? staged.data() : transfer.data; }
  };
  // Messages that are one for NCCL.
  struct Launch {
    std::vector<Moving> messages;
    std::shared_ptr<const Event> moved;
  };
  void take_waiting();
  void stage(Moving& moving);
  void issue();
  void enter_stream();
  bool finish_moved();

  const Config c_;
  const bool is_sender_;
  Stream stream_;
  std::deque<Transfer> waiting_;
  std::optional<Launch> issued_;  // the first of waiting_, being launched
  std::deque<Launch> moving_;
  std::optional<std::chrono::steady_clock::time_point> alone_since_;  // what waits_since has seen of the first message
  Event last_;                                                        // of the stream, after abort
  Communicator comm_;
};

}  // namespace backplane::nccl
