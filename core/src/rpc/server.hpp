// SPDX-License-Identifier: Apache-2.0
//
// Requests of peers: runs functions and replies. Inline functions and requests about references run on the thread that
// received them, other functions and the encoding of values on the executor's. A mutex guards the calls being served.
// Calls the references, and the connection for replies.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rpc/cancels.hpp"
#include "rpc/connection.hpp"
#include "rpc/context.hpp"
#include "rpc/inbound_call.hpp"
#include "rpc/references.hpp"

namespace backplane::core::rpc {

class Server {
 public:
  Server(Context* context, Connection* connection, References* references)
      : context_(*context), connection_(*connection), references_(*references) {}

  // Messages and events. None of these blocks. `problem`: the request's buffers could not be received; NULL: none.
  void serve(int32_t from, Header header, std::shared_ptr<Payload> payload, const Error* problem);
  void on_cancel(int32_t from, const Header& header);
  void on_peer_gone(int32_t peer);
  // Whether a message's id is that of a reply, and its loss.
  static bool is_reply(uint64_t id);
  void on_reply_failed(int32_t to, uint64_t id, const Error& error);
  // Tells a peer that replies may have been lost: its agent may not have noticed the broken connection.
  void on_connection_lost(int32_t peer);

  // Refuses further calls and cancels those being served.
  void close();

  struct Status {
    int32_t from = -1;
    uint64_t number = 0;
    Kind kind = Kind::kCall;
    std::string function;
    Deadline::Clock::time_point arrived;
    bool started = false;
    bool ended = false;
    bool cancelled = false;
  };
  std::vector<Status> calls() const;
  bool is_idle() const;
  uint64_t arrived() const { return arrived_.load(); }  // requests in total
  // Waits until a call has ended, at most this long. May wake up early.
  void wait_for_end(std::chrono::nanoseconds limit);

 private:
  void serve_call(int32_t from, Header header, std::shared_ptr<Payload> payload);
  void serve_fetch(int32_t from, const Header& header);
  void serve_reference(int32_t from, const Header& header);
  bool create_value(int32_t from, const Header& header);
  void run(const std::shared_ptr<InboundCall>& call);
  std::shared_ptr<Value> invoke(const InboundCall& call) const;
  void finish(const InboundCall& call, std::shared_ptr<Value> value, const Error* error, Content result);
  void reply(int32_t to, uint64_t call, Content content);
  void send_reply(int32_t to, uint64_t call, const Header& header, Content content);
  void reply_error(int32_t to, uint64_t call, const Error& error, uint64_t attempt = 0);

  Context& context_;
  Connection& connection_;
  References& references_;
  EarlyCancels cancels_;
  std::atomic<uint64_t> arrived_ = 0;

  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable ended_;
  std::map<std::pair<int32_t, uint64_t>, std::shared_ptr<InboundCall>> calls_;
  bool closed_ = false;
};

}  // namespace backplane::core::rpc
