// SPDX-License-Identifier: Apache-2.0
//
// The calls of a client that wait for their replies. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "store/interruption.hpp"
#include "store/wire.hpp"

namespace backplane::core {

class PendingCalls {
 public:
  // `where`: the address of the store, for messages.
  explicit PendingCalls(std::string where) : where_(std::move(where)) {}

  // A call in progress, on its caller's stack.
  class Call {
   public:
    // Fails with BP_PEER_LOST if the connection is closed.
    explicit Call(PendingCalls& calls);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    uint64_t id() const { return id_; }
    // False if the reply has not come at the deadline. BP_PEER_LOST if the connection is closed.
    bool wait(const Deadline& deadline, const Interruption& interruption);
    // After a `wait` that returned true.
    Reply take_reply() { return std::move(reply_); }

   private:
    friend class PendingCalls;
    PendingCalls& calls_;
    uint64_t id_ = 0;
    // Guarded by the mutex of calls_.
    std::condition_variable changed_;
    bool done_ = false;
    Reply reply_;
  };

  // Ignores replies to ended calls.
  void complete(Reply reply);
  // Makes all calls check their interruption.
  void wake();
  // Fails all present and later calls. Returns false if an earlier call of this function did.
  bool fail_all(std::string why);

 private:
  void check_open() const;

  const std::string where_;
  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t last_id_ = 0;
  std::map<uint64_t, Call*> calls_;
  std::string lost_;  // why the connection is closed; empty while it is open
};

}  // namespace backplane::core
