// SPDX-License-Identifier: Apache-2.0
//
// A client's connection to the server, shared by all handles and threads of a TCP store. One thread reads and writes;
// each caller waits for its own reply. Once a rank is enrolled over it, both ends exchange heartbeats.
#pragma once

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "liveness/exit_handler.hpp"
#include "store/frame_stream.hpp"
#include "store/interruption.hpp"
#include "store/loss_subscriptions.hpp"
#include "store/pending_calls.hpp"
#include "store/tcp_dial.hpp"
#include "store/wire.hpp"

namespace backplane::core {

class Connection final : private FrameHandler {
 public:
  // `where` is for messages.
  Connection(std::unique_ptr<Link> link, std::string where);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Sends a request (fills in its id) and waits for the reply. When the deadline passes, cancels the request and waits
  // a moment for the reply that names the missing keys; returns nothing if it does not come. BP_PEER_LOST if the
  // connection is closed. Any thread.
  std::optional<Reply> call(StoreRequest request, const Deadline& deadline, const Interruption& interruption);
  // Makes all calls check their interruption.
  void wake() { calls_.wake(); }

  // Calls `notify` for every later loss in the scope and for the loss of the store itself, on the connection's thread.
  // Also starts the heartbeats.
  uint64_t subscribe(const std::string& scope, LossSubscriptions::Notify notify);
  // Waits for a running `notify`. Must not be called from one.
  void unsubscribe(uint64_t subscription) { subscriptions_.remove(subscription); }

  const std::string& where() const { return where_; }

  // Requests that the server turned out not to know. Any thread.
  bool lacks(RequestKind kind) const { return (lacks_.load() >> static_cast<unsigned>(kind) & 1U) != 0; }
  void note_lack(RequestKind kind) { lacks_ |= UINT64_C(1) << static_cast<unsigned>(kind); }

 private:
  // On the connection's thread.
  void run();
  std::shared_ptr<void> keep_alive() override { return nullptr; }  // the destructor ends the thread
  size_t max_frame_size() const override { return kMaxFrameSize + (opener_ ? kSealBytes : 0); }
  bool takes_frames() const override { return true; }
  bool on_unfinished(size_t) override { return true; }
  void on_frame(std::span<char> frame) override;
  void on_sent() override {}
  void on_malformed() override;
  void on_read_error(const ErrorCode& error) override;
  void on_write_error(const ErrorCode& error) override;
  void on_push(const Push& push);
  // `text`: why later calls fail; `reason` ends the notice "the store is lost: ...".
  void lose(const std::string& text, const std::string& reason);
  void schedule_heartbeat();
  void send_heartbeat();

  void post_frame(std::string frame, uint64_t id);
  void abandon(uint64_t id);
  // At exit: all ranks of this client leave.
  void leave_at_exit(const Deadline& deadline) noexcept;

  const std::string where_;
  const std::unique_ptr<Link> link_;
  PendingCalls calls_{where_};
  LossSubscriptions subscriptions_;
  std::atomic<bool> has_heartbeat_ = false;  // a rank is enrolled
  std::atomic<uint64_t> lacks_ = 0;          // a bit for each RequestKind
  std::atomic<bool> exiting_ = false;        // no more notices
  // Used only by the thread.
  FrameStream stream_;
  std::optional<Opener> opener_;
  boost::asio::steady_timer heartbeat_timer_;
  SuspensionDetector suspension_;
  bool server_shut_down_ = false;  // in an orderly way

  std::thread thread_;
  const ExitHandler exit_handler_;
};

}  // namespace backplane::core
