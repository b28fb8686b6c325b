// SPDX-License-Identifier: Apache-2.0
//
// A client's connection to the server, shared by all handles and threads of a TCP store. One thread reads and writes;
// each caller waits for its own reply. Once a rank is enrolled over it, both ends exchange heartbeats.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "liveness/exit_handler.hpp"
#include "store/interruption.hpp"
#include "store/tcp_dial.hpp"
#include "store/wire.hpp"

namespace backplane::core {

class Connection {
 public:
  // `where` is for messages.
  Connection(std::unique_ptr<Link> link, std::string where);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Sends a request (fills in its id) and waits for the reply. When the deadline passes, cancels the request and waits
  // a moment for the reply that names the missing keys; returns nothing if it does not come. BP_PEER_LOST if the
  // connection is closed. Any thread.
  std::optional<Reply> call(StoreRequest request, const Deadline& deadline, const Interruption& interruption);
  // Makes all calls check their interruption.
  void wake();

  // Calls `notify` for every later loss in the scope and for the loss of the store itself, on the connection's thread.
  // Also starts the heartbeats.
  uint64_t subscribe(const std::string& scope, std::function<void(const Loss&)> notify);
  // Waits for a running `notify`. Must not be called from one.
  void unsubscribe(uint64_t subscription);

  const std::string& where() const { return where_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Subscription {
    std::string scope;
    std::function<void(const Loss&)> notify;
    std::set<int32_t> reported;  // the server repeats losses when another thread enrolls in the same scope
  };
  // A call in progress, on its caller's stack.
  struct Pending {
    std::condition_variable replied;
    bool done = false;
    Reply reply;
  };
  struct Outgoing {
    uint64_t id = 0;  // of the request that is sent or cancelled
    bool cancels = false;
    std::string frame;
  };
  class Entry;

  // On the connection's thread.
  void run();
  void read_size();
  void read_body(size_t size);
  bool receive(Reply reply);  // false if it is malformed
  bool receive_push(const Push& push);
  void complete(Reply reply);
  void write_next();
  // `text`: why later calls fail; `reason` ends the notice "the store is lost: ...".
  void lose(const std::string& text, const std::string& reason);
  void lose(const ErrorCode& error);
  void notify_all(const std::string& reason);
  void schedule_heartbeat();
  void send_heartbeat();

  // At exit: all ranks of this client leave.
  void leave_at_exit(const Deadline& deadline) noexcept;

  // With mutex_ held.
  void enqueue(Outgoing outgoing);
  void abandon(uint64_t id);
  bool wait_for_reply(Pending& pending, std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                      const Interruption& interruption);
  void check_alive() const;

  const std::string where_;
  const std::unique_ptr<Link> link_;
  // Only for the thread.
  std::array<char, kSizeBytes> size_{};
  std::string body_;
  std::string writing_frame_;
  boost::asio::steady_timer heartbeat_timer_;
  Clock::time_point last_tick_;      // of the heartbeat timer
  Clock::time_point last_received_;  // a byte of the server
  bool server_shut_down_ = false;    // in an orderly way

  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t last_id_ = 0;
  std::map<uint64_t, Pending*> pending_;
  std::deque<Outgoing> outgoing_;
  bool writing_ = false;
  std::string lost_;  // why the connection is closed; empty while it is open

  std::mutex subscriptions_mutex_;  // held during notifications; locked before mutex_
  // Guarded by subscriptions_mutex_.
  uint64_t last_subscription_ = 0;
  std::map<uint64_t, Subscription> subscriptions_;
  bool sends_heartbeats_ = false;

  std::atomic<bool> exiting_ = false;  // no more notices
  std::thread thread_;
  const ExitHandler exit_handler_;
};

}  // namespace backplane::core
