// SPDX-License-Identifier: Apache-2.0
//
// A client's connection to the server, shared by all handles and threads of a TCP store. One thread reads and writes;
// callers wait for their own answer. Once a rank is enrolled over it, it gives signs of life and expects some.
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

  // Sends a request (its id is filled in) and waits for the answer. When the deadline passes, the server is told to
  // forget the request and has a moment to say what is missing; nothing if it does not. BP_PEER_LOST if the server is
  // gone. From any thread.
  std::optional<Reply> call(StoreRequest request, const Deadline& deadline, const Interruption& interruption);
  // Makes all calls look at their interruption.
  void wake();

  // Calls `tell` for every loss in the scope from now on, and for the loss of the store itself; from the connection's
  // thread, one at a time. Also starts the signs of life.
  uint64_t watch(const std::string& scope, std::function<void(const Loss&)> tell);
  // Waits for a `tell` in progress; so not from within one.
  void unwatch(uint64_t watch);

  const std::string& where() const { return where_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Watch {
    std::string scope;
    std::function<void(const Loss&)> tell;
    std::set<int32_t> told;  // the server repeats itself when another thread enrolls in the same scope
  };
  // A call in progress, on its caller's stack.
  struct Pending {
    std::condition_variable answered;
    bool done = false;
    Reply reply;
  };
  struct Outgoing {
    uint64_t id = 0;  // of the request that this is or cancels
    bool cancels = false;
    std::string frame;
  };
  class Entry;

  // On the connection's thread.
  void run();
  void read_size();
  void read_body(size_t size);
  bool take(Reply reply);  // false if it makes no sense
  bool take_push(const Push& push);
  void complete(Reply reply);
  void write_next();
  // `text` says why calls fail from now on; `reason` ends the sentence "the store is lost: ...".
  void lose(const std::string& text, const std::string& reason);
  void lose(const ErrorCode& error);
  void tell_all(const std::string& reason);
  void keep_beat();
  void beat();

  // At the end of the process: all ranks of this client depart in peace.
  void part(const Deadline& deadline) noexcept;

  // With mutex_ held.
  void enqueue(Outgoing outgoing);
  void abandon(uint64_t id);
  bool wait_for_answer(Pending& pending, std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                       const Interruption& interruption);
  void check_alive() const;

  const std::string where_;
  const std::unique_ptr<Link> link_;
  // Only for the thread.
  std::array<char, kSizeBytes> size_{};
  std::string body_;
  std::string writing_frame_;
  boost::asio::steady_timer beat_timer_;
  Clock::time_point beaten_;  // when the timer was last seen to
  Clock::time_point heard_;   // when a byte of the server came
  bool farewell_ = false;     // the server has said goodbye

  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t last_id_ = 0;
  std::map<uint64_t, Pending*> pending_;
  std::deque<Outgoing> outgoing_;
  bool writing_ = false;
  std::string lost_;  // why the connection is over, empty while it is not

  std::mutex watch_mutex_;  // held while somebody is told, who may take mutex_; never the other way round
  // Guarded by watch_mutex_.
  uint64_t last_watch_ = 0;
  std::map<uint64_t, Watch> watches_;
  bool beating_ = false;

  std::atomic<bool> parted_ = false;  // this process ends: nobody is to be told of anything
  std::thread thread_;
  const ExitHandler exit_handler_;
};

}  // namespace backplane::core
