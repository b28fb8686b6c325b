// SPDX-License-Identifier: Apache-2.0
//
// A client's connection to the server, shared by all handles and threads of a TCP store. One thread reads and writes;
// callers wait for their own answer.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

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
  std::optional<Reply> call(Request request, const Deadline& deadline, const Interruption& interruption);
  // Makes all calls look at their interruption.
  void wake();

  const std::string& where() const { return where_; }

 private:
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
  void complete(Reply reply);
  void write_next();
  void lose(const std::string& reason);

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

  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t last_id_ = 0;
  std::map<uint64_t, Pending*> pending_;
  std::deque<Outgoing> outgoing_;
  bool writing_ = false;
  std::string lost_;  // why the connection is over, empty while it is not

  std::thread thread_;
};

}  // namespace backplane::core
