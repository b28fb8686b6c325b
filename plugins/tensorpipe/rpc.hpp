// SPDX-License-Identifier: Apache-2.0
//
// The RPC agent. It opens a pipe to each worker with the first message to it, and again after a failure. It only reads
// the pipes that other workers open. Messages are handled on TensorPipe's threads. Pipes and listeners are created on
// the agent's own thread, because their creation waits for the store.
//
// Express connections: beside each pipe through shared memory there is a connection of the same transport without the
// pipe protocol, whose processing takes longer than the transfer of a small message. Small messages use it and may
// overtake those on the pipe. A goodbye (a message without an id) must not overtake anything: it uses the pipe, carries
// the number of messages sent on the express connection before it, and the receiver defers it until these have arrived.
// If the pipe or the express connection breaks, both are dropped.
#pragma once

#include <tensorpipe/transport/connection.h>
#include <tensorpipe/transport/listener.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backplane/sdk/rpc.hpp"
#include "device_maps.hpp"
#include "endpoint.hpp"
#include "limiter.hpp"
#include "staging.hpp"
#include "transport.hpp"
#include "wire.hpp"

namespace backplane::tensorpipe {

class Agent final : public sdk::RpcAgent {
 public:
  explicit Agent(const sdk::Context& context);
  ~Agent() override;

  void send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) override;
  void abort(const sdk::Failure& why) noexcept override;

 private:
  using Pipe = std::shared_ptr<::tensorpipe::Pipe>;
  using Express = std::shared_ptr<::tensorpipe::transport::Connection>;

  using OutgoingPtr = std::shared_ptr<Outgoing>;

  // A goodbye that waits for messages sent before it.
  struct DeferredGoodbye {
    Pipe pipe;
    std::unique_ptr<IncomingMessage> received;
  };

  struct Peer {
    Token token = {};           // written by the constructor only
    Pipe pipe;                  // null: the next message opens one
    bool is_scheduled = false;  // queued for the agent's thread, or its first message is being copied from a device
    std::deque<OutgoingPtr> backlog;      // messages that wait for the pipe
    std::deque<OutgoingPtr> unconfirmed;  // messages that wait for a receipt
    Express express;                      // beside the pipe
    bool is_express_open = false;         // the greeting has arrived; until then small messages use the pipe
    ExpressPosition sent;                 // on the express connection with the pipe's number
    bool express_disabled = false;        // an express connection broke without its pipe
    // State of what this peer sends.
    ExpressPosition received_express;  // on its latest express connection
    std::vector<DeferredGoodbye> deferred;
    uint64_t lost = 0;  // its pipes and express connections up to this number are known to be lost
  };
  // State of a pipe that is read, used by its callbacks, which TensorPipe runs one at a time. The counters are also
  // decremented by the threads that copy to devices, after delivery.
  struct IncomingPipe {
    int32_t from = -1;              // sender of the last message, -1 if there was none
    std::atomic<int> arriving = 0;  // messages that are being received, delivered in order
    std::atomic<int> copying = 0;   // of these, messages that are being copied to devices, or wait behind such
    uint64_t express = 0;           // number of the sender's express connection beside this pipe
  };
  void publish_endpoint(const ::tensorpipe::Listener& listener);
  void run();
  void connect(int32_t to);
  void write_backlog(int32_t to);
  void stage(int32_t to, const OutgoingPtr& message);
  void write(int32_t to, const Pipe& pipe, const OutgoingPtr& message);
  void watch(int32_t to, const Pipe& pipe);
  bool forget(int32_t to, const Pipe& pipe);
  void take_receipt(int32_t to);
  std::shared_ptr<::tensorpipe::Listener> listen();
  bool listen_again();
  void close_idle_connections();
  void accept(const std::shared_ptr<::tensorpipe::Listener>& listener);
  void read(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming);
  void take(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming, std::unique_ptr<IncomingMessage> received);
  void place(const Pipe& pipe, const std::shared_ptr<IncomingPipe>& incoming,
             std::unique_ptr<IncomingMessage> received);
  void deliver(const Pipe& pipe, std::unique_ptr<IncomingMessage> received);
  void hand_over(const Pipe& pipe, std::unique_ptr<IncomingMessage> received);
  void drop(const Pipe& pipe, int32_t from, uint64_t express, const sdk::Failure& why);
  void report_loss(int32_t from, uint64_t express, const sdk::Failure& why);

  void listen_express();
  void connect_express(int32_t to, const Endpoint& endpoint);
  void write_express(int32_t to, const Express& express, const OutgoingPtr& message,
                     const ExpressPosition& express_position);
  void watch_express(int32_t to, const Express& express);
  bool open_express(int32_t to, const Express& express);
  bool forget_express(int32_t to, const Express& express);
  void accept_express(const std::shared_ptr<::tensorpipe::transport::Listener>& listener);
  void read_express(const Express& express, const std::shared_ptr<IncomingPipe>& incoming);
  void drop_express(const Express& express, const IncomingPipe& incoming, const sdk::Failure& why);
  void count_express(int32_t from, uint64_t express, bool all = false);
  bool defer_goodbye(const Pipe& pipe, std::unique_ptr<IncomingMessage>* received);
  std::vector<DeferredGoodbye> take_deferred(int32_t from, const std::function<bool(const DeferredGoodbye&)>& due);
  void hand_over(std::vector<DeferredGoodbye> deferred);

  const sdk::RpcHost core_;
  const sdk::Host host_;
  base::LogLimit dropped_;  // messages
  base::LogLimit closed_;   // idle connections
  const int32_t rank_;
  const std::shared_ptr<sdk::BlockPool> memory_;
  Transports transports_;
  Endpoint endpoint_;  // with the URLs of the current listener; used by the constructor, then by the agent's thread
  const ConnectionLimiter limiter_;

  // Guards the fields below. Never held while TensorPipe is called or one of its objects is destroyed: both may run
  // callbacks on this thread.
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::deque<int32_t> work_queue_;  // workers to connect to, or whose backlog is to be written
  std::shared_ptr<::tensorpipe::Listener> listener_;
  std::set<Pipe> incoming_;
  std::shared_ptr<::tensorpipe::transport::Listener> express_listener_;
  std::set<Express> incoming_express_;
  std::condition_variable changed_;
  bool listener_failed_ = false;
  std::atomic<bool> is_stopped_ = false;  // written with the lock

  std::optional<Staging> staging_;  // created before anything is sent or accepted
  std::thread thread_;
};

}  // namespace backplane::tensorpipe
