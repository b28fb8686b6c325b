// SPDX-License-Identifier: Apache-2.0
//
// Moves the data of messages in one direction between two ranks: a communicator of the two and a stream. Both ends add
// the same messages in the same order, so a channel never waits for another one. Messages of a batch that are waiting
// at the same time become one NCCL group. The ends may group differently: NCCL matches the sends and receives of two
// ranks by their order alone.
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

// The completion of a send or receive, with the events that order it among streams. Thread-safe.
class MessageCompletion final : public sdk::Completion {
 public:
  // `is_host`: the buffer is staged. `after`: an event in the caller's stream that the data must wait for, or null. The
  // messages of a batch share one.
  MessageCompletion(bool is_host, std::shared_ptr<const Event> after) : is_host(is_host), after(std::move(after)) {}
  const bool is_host;
  const std::shared_ptr<const Event> after;

  void set_event(std::shared_ptr<const Event> event) {
    const std::lock_guard lock(mutex_);
    event_ = std::move(event);
  }
  // The event in a stream at which the message ends; null: the message is not in a stream yet.
  std::shared_ptr<const Event> event() const {
    const std::lock_guard lock(mutex_);
    return event_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Event> event_;
};

// One end of a message.
struct Transfer {
  void* data = nullptr;  // the caller's buffer
  uint64_t bytes = 0;
  std::shared_ptr<MessageCompletion> done;
  std::shared_ptr<void> owner;  // keeps a sender's buffer borrowed; null for a receive
};

// Not thread-safe.
class Channel {
 public:
  struct Config {
    const Api& api;
    int device;
    Pool& pool;
    int max_ctas;
  };

  Channel(const Config& config, bool is_sender, const ncclUniqueId& id);

  // Throws std::bad_alloc and leaves `transfer` unchanged.
  void add(Transfer&& transfer) { waiting_.push_back(std::move(transfer)); }
  // Launches waiting messages and ends those that have passed. True if anything happened. Throws NCCL's errors.
  bool progress();
  bool busy() const { return !waiting_.empty() || issued_ || !launched_.empty(); }
  // When the first message began to wait for the other end, anew when it is launched. Empty: there is none, or it waits
  // for `after`.
  std::optional<std::chrono::steady_clock::time_point> waiting_since();

  // Ends the group. Call in this order: collect_finished ends the messages that have passed; abort aborts the
  // communicator; poll is_idle until the device uses no buffer; fail fails the other messages.
  void collect_finished() noexcept;
  void abort() noexcept { comm_.abort(); }
  bool is_idle() noexcept { return stream_.is_idle(c_.pool, last_); }
  void fail(const sdk::Failure& why) noexcept;
  // For an orderly leave instead. Blocks up to timeout_ns.
  void close(int64_t timeout_ns) { comm_.close(timeout_ns); }

 private:
  struct Message {
    Transfer transfer;
    StagingBuffer staging;  // empty unless the caller's buffer is host memory
    void* data() const { return transfer.done->is_host ? staging.device.data() : transfer.data; }
  };
  // One NCCL group.
  struct Launch {
    std::vector<Message> messages;
    std::shared_ptr<const Event> end;
  };
  void take_waiting();
  void stage(Message& message);
  void issue();
  void record_end();
  bool finish_passed();
  const Transfer& first() const;

  const Config c_;
  const bool is_sender_;
  Stream stream_;
  std::deque<Transfer> waiting_;
  std::optional<Launch> issued_;                                        // NCCL is launching it
  std::deque<Launch> launched_;                                         // in the stream
  std::optional<std::chrono::steady_clock::time_point> waiting_since_;  // of the first message
  Event last_;                                                          // of the stream, after abort
  Communicator comm_;
};

}  // namespace backplane::nccl
