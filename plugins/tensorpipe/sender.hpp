// SPDX-License-Identifier: Apache-2.0
//
// Sends messages to the other workers, through one pipe and at most one express connection to each. The first message
// to a worker opens its pipe, and so does the next one after a failure. Pipes are opened and messages that waited for
// them are written on the executor's thread, because opening waits for the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backplane/sdk/rpc.hpp"
#include "endpoint.hpp"
#include "executor.hpp"
#include "staging.hpp"
#include "transport.hpp"
#include "wire.hpp"

namespace backplane::tensorpipe {

class Sender {
 public:
  // `tokens`: of the workers, by rank. `own`: this worker's endpoint, which only the executor's thread changes.
  // `is_stopped`: the agent has ended. All references outlive this object.
  Sender(const sdk::Context& context, std::vector<Token> tokens, const Endpoint& own, const Transports& transports,
         Staging& staging, TimedExecutor& executor, const std::atomic<bool>& is_stopped);

  // Any thread, does not block. Throws sdk::Failure.
  void send(int32_t to, sdk::RpcMessage message);
  // Releases pipes and messages. Call once no callback can run any more.
  void clear();

 private:
  using OutgoingPtr = std::shared_ptr<Outgoing>;

  struct Peer {
    Pipe pipe;                            // null: the next message opens one
    bool is_answered = false;             // a write on the pipe has completed
    bool is_scheduled = false;            // in the executor's queue, or its first message is being copied from a device
    std::deque<OutgoingPtr> backlog;      // messages that wait for the pipe
    std::deque<OutgoingPtr> unconfirmed;  // messages that wait for a receipt
    Express express;                      // beside the pipe
    bool is_express_open = false;         // the greeting has arrived; until then small messages use the pipe
    ExpressPosition sent;                 // on the express connection with the pipe's number
    bool express_disabled = false;        // an express connection broke without its pipe
  };

  const Token& token_of(int32_t to) const { return tokens_[static_cast<size_t>(to)]; }
  Peer& at(int32_t to) { return peers_[static_cast<size_t>(to)]; }
  void schedule(int32_t to);
  void connect(int32_t to);
  void write_backlog(int32_t to);
  void stage(int32_t to, const OutgoingPtr& message);
  void write(int32_t to, const Pipe& pipe, const OutgoingPtr& message);
  void watch(int32_t to, const Pipe& pipe);
  void expect_answer(int32_t to, const Pipe& pipe, const std::string& url);
  void check_answer(int32_t to, const Pipe& pipe, const std::string& url);
  void take_receipt(int32_t to);
  bool forget(int32_t to, const Pipe& pipe);

  void connect_express(int32_t to, const Endpoint& endpoint);
  void write_express(int32_t to, const Express& express, const OutgoingPtr& message, const ExpressPosition& position);
  void watch_express(int32_t to, const Express& express);
  bool open_express(int32_t to, const Express& express);
  bool forget_express(int32_t to, const Express& express);

  const sdk::RpcHost core_;
  const sdk::Host host_;
  const int32_t rank_;
  const std::vector<Token> tokens_;
  const Endpoint& own_;
  const Transports& transports_;
  Staging& staging_;
  TimedExecutor& executor_;
  const std::atomic<bool>& is_stopped_;

  // Guards peers_. Never held while TensorPipe is called or one of its objects is destroyed: both may run callbacks on
  // this thread.
  std::mutex mutex_;
  std::vector<Peer> peers_;
};

}  // namespace backplane::tensorpipe
