// SPDX-License-Identifier: Apache-2.0
//
// Requests of this worker to others: their table and deadlines, their messages, replies, failures and cancellations. A
// request ends once, with a call of its `done`. It has no lock of its own; the tables have theirs. Calls the
// connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rpc/call_table.hpp"
#include "rpc/cancels.hpp"
#include "rpc/connection.hpp"
#include "rpc/context.hpp"

namespace backplane::core::rpc {

class Caller {
 public:
  // `detects_deaths`: a failure detector reports deaths in addition to the transport.
  Caller(Context* context, Connection* connection, bool detects_deaths);

  // Enters a request, whose message follows by send. BP_INHERIT_TIMEOUT becomes the worker's. Throws after close.
  uint64_t begin(int32_t to, const Header& header, uint64_t request_bytes, int64_t* timeout_ns, Done done);
  // Sends the message of request header.call. If that fails, releases its forks and ends the request.
  void send(int32_t to, const Header& header, Content content, int64_t timeout_ns);
  // begin and send, for a message without references. Ends the request at once if the peer has left or died.
  uint64_t request(int32_t to, Header header, Content content, int64_t timeout_ns, Done done);
  CallTable& calls() { return calls_; }

  // From now on only functions of this worker and callbacks of calls may begin calls, because those in flight may need
  // them. On other threads calls fail.
  void refuse_new_calls() { refuses_.store(true); }
  // Throws BP_CANCELLED if this thread must not begin a call.
  void require_new_calls() const;

  // Ends a request that got no reply, unless it has ended or `to` is another peer, and cancels it at the callee.
  void end(uint64_t number, const Error& why, int32_t to = CallTable::kAnyPeer);
  void cancel(uint64_t number) { end(number, Error(BP_CANCELLED, "cancelled by the caller")); }
  // The error with the function and the worker in its text.
  Error describe(const Call& call, const Error& error) const;
  int64_t resolve_timeout(int64_t timeout_ns) const;
  // The timeout of cancellations, and of messages that are repeated until they are confirmed.
  int64_t retry_timeout_ns() const;

  // Events of the transport and the failure detector. None of these blocks.
  void on_reply(int32_t from, const Header& header, std::shared_ptr<Payload> payload);
  void on_send_failed(int32_t to, uint64_t number, const Error& error);
  void on_connection_lost(int32_t peer, const Error& error);
  void on_replies_lost(int32_t from, uint64_t last);
  void on_peer_gone(int32_t peer, const Error& why);

  // Refuses further requests and ends the present ones. Waits for their deadlines' thread.
  void close(const Error& why);

  // While it exists, a request is being ended, or a message with references being sent: the release of those may begin
  // another request. Shutdown waits for it.
  class Completion {
   public:
    explicit Completion(Caller* caller) : caller_(*caller) { ++caller_.completing_; }
    ~Completion() { --caller_.completing_; }
    Completion(const Completion&) = delete;
    Completion& operator=(const Completion&) = delete;

   private:
    Caller& caller_;
  };
  bool is_completing() const { return completing_ > 0; }

 private:
  static void call_done(const Call& call, std::shared_ptr<Payload> reply, const Error* error);
  void cancel_at_callee(const Call& call, uint64_t number, const Error& error);
  void send_cancel(int32_t to, const SentCancels::Cancel& cancel);
  void resend_cancels(int32_t to);

  Context& context_;
  Connection& connection_;
  const bool detects_deaths_;
  SentCancels cancels_;
  CallTable calls_;
  std::atomic<size_t> completing_ = 0;
  std::atomic<bool> refuses_ = false;
};

}  // namespace backplane::core::rpc
