// SPDX-License-Identifier: Apache-2.0
//
// RPC over libzmq. Messages between two workers are numbered, and the sender keeps them until the receiver confirms
// them. After a broken connection the sender reconnects and resends unconfirmed messages; the receiver drops
// duplicates. Confirmations travel with messages of the other direction, or after a short delay by themselves.
//
// Sends run on the caller's thread. One thread receives, connects, reports to the core and releases messages. One mutex
// guards the state; it is not held when the core is called.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "address.hpp"
#include "backplane/sdk/rpc.hpp"
#include "options.hpp"
#include "rpc_sleep.hpp"
#include "rpc_wire.hpp"
#include "transport.hpp"

namespace backplane::zmq {

class RpcAgent final : public sdk::RpcAgent {
 public:
  explicit RpcAgent(const sdk::Context& context);
  ~RpcAgent() override;

  void send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) override;
  void abort(const sdk::Failure& why) noexcept override;

 private:
  using Message = std::shared_ptr<Outgoing>;

  struct Peer {
    Address address;  // not of this worker
    Token token = {};
    std::optional<sdk::Failure> lost;  // why messages to it fail until kRetryAfter has passed
    TimePoint lost_at;

    uint64_t last_number = 0;  // of the last message to it
    std::deque<Message> unconfirmed;
    TimePoint confirmed_at;  // last confirmation from it, or request for one
    bool dialled = false;
    TimePoint dial_at;  // earliest time of the next dial
    int failures = 0;   // failed connections since the last confirmation
    TimePoint failing_since;

    uint64_t received = 0;        // number of the last message from it
    uint64_t unacknowledged = 0;  // messages from it without a receipt
    TimePoint unacknowledged_since;
  };

  // Reported to the core without the lock, in this order.
  struct Events {
    struct Failed {
      int32_t to;
      uint64_t id;
      sdk::Failure why;
    };
    // Lost workers that have sent a message since. The core must report to them that replies to them were lost.
    std::vector<std::pair<int32_t, sdk::Failure>> returned;
    std::vector<std::shared_ptr<Incoming>> received;
    std::vector<Failed> failed;
    std::vector<std::pair<int32_t, sdk::Failure>> lost;
  };

  // Released messages. The agent's thread destroys them, since they run destructors of the program.
  class Released {
   public:
    explicit Released(RpcAgent* agent) : agent_(*agent) {}
    void add(std::unique_ptr<Outgoing> message);  // any thread
    bool any() const { return any_.load(); }
    std::vector<std::unique_ptr<Outgoing>> take();

   private:
    RpcAgent& agent_;
    std::atomic<bool> any_ = false;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Outgoing>> messages_;
  };

  // rpc.cpp
  void publish_address();
  void look_up(int32_t rank, const sdk::Context& context);
  void run();
  void serve();
  void fail(const sdk::Failure& why);
  void report(const Events& events);

  // rpc_messages.cpp; all with the lock
  bool receive(Events* events);
  void on_message(std::vector<::zmq::message_t> frames, Events* events);
  void confirm(Peer* peer, uint64_t number);
  void answer_zap();
  void on_breaks(Events* events);
  void on_break(int32_t rank, Events* events);
  void lose(int32_t rank, const sdk::Failure& why, Events* events);
  TimePoint maintain(Events* events);
  void maintain(int32_t rank, TimePoint now, Events* events);
  void expire(int32_t rank, TimePoint now, Events* events);
  void dial(int32_t rank, Events* events);
  bool post(int32_t rank, RpcKind kind, const Message& message = nullptr);
  void maintain_at(TimePoint due);

  const sdk::RpcHost core_;
  const sdk::Host host_;
  const int32_t rank_;
  const Settings settings_;
  RpcSleep sleep_{settings_.poll};
  Released released_;

  std::mutex mutex_;         // guards what follows
  Sockets sockets_;          // its messages end in released_
  std::vector<Peer> peers_;  // by rank, with this worker
  std::optional<sdk::Failure> ended_;
  TimePoint due_ = TimePoint::max();  // of the next maintain()
  base::LogLimit rejected_;           // messages of other processes
  base::LogLimit dropped_;

  std::thread thread_;
};

}  // namespace backplane::zmq
