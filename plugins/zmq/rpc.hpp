// SPDX-License-Identifier: Apache-2.0
//
// RPC over libzmq. Messages between two workers are numbered, and the sender keeps them until the receiver confirms
// them. After a broken connection the sender reconnects and resends unconfirmed messages; the receiver drops
// duplicates. Confirmations travel with messages of the other direction, or after a short delay by themselves.
//
// Sends run on the caller's thread. One thread receives, connects, and reports to the core. One mutex guards the state;
// it is not held when the core is called. Messages are released on that thread only.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "address.hpp"
#include "backplane/sdk/rpc.hpp"
#include "backplane/sdk/spin_policy.hpp"
#include "options.hpp"
#include "progress.hpp"
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
  using Kept = std::shared_ptr<Departure>;

  struct Peer {
    Address address;
    Token token = {};
    std::optional<sdk::Failure> gone;  // why nothing goes there for now
    TimePoint lost_at;

    uint64_t last_number = 0;  // of what was sent there
    std::deque<Kept> unconfirmed;
    TimePoint asked_at;  // when it was asked for, or last gave, a confirmation
    bool dialled = false;
    TimePoint dial_at;  // not before
    int failures = 0;   // of connections since something was confirmed
    TimePoint failing_since;

    uint64_t received = 0;  // number of the last message from there
    uint64_t owed = 0;      // messages not yet confirmed to it
    TimePoint owed_since;
  };

  // What the core is told without the lock, in this order.
  struct News {
    struct Failed {
      int32_t to;
      uint64_t id;
      sdk::Failure why;
    };
    std::vector<std::pair<int32_t, sdk::Failure>> back;  // those who were lost, and why; now they can be told
    std::vector<std::shared_ptr<RpcArrival>> arrivals;
    std::vector<Failed> failed;
    std::vector<std::pair<int32_t, sdk::Failure>> lost;
  };

  // Unused messages. The agent's thread destroys them, since they run destructors of the program.
  class Finished {
   public:
    explicit Finished(RpcAgent* agent) : agent_(*agent) {}
    void add(std::unique_ptr<Departure> message);  // any thread
    bool any() const { return any_.load(); }
    std::vector<std::unique_ptr<Departure>> take();

   private:
    RpcAgent& agent_;
    std::atomic<bool> any_ = false;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Departure>> messages_;
  };

  // rpc.cpp
  void publish_address();
  void learn(int32_t rank, const sdk::Context& context);
  void run();
  void serve();
  void give_up(const sdk::Failure& why);
  void tell(const News& news);
  void sleep(TimePoint until);
  bool poll(TimePoint until);
  void wake();

  // rpc_messages.cpp; all with the lock
  bool receive(News* news);
  void take(std::vector<::zmq::message_t> frames, News* news);
  void confirm(Peer* peer, uint64_t number);
  void admit();
  void note_breaks(News* news);
  void broke(int32_t rank, News* news);
  void lose(int32_t rank, const sdk::Failure& why, News* news);
  TimePoint keep_up(News* news);
  void keep_up(int32_t rank, TimePoint now, News* news);
  void expire(int32_t rank, TimePoint now, News* news);
  void dial(int32_t rank, News* news);
  bool post(int32_t rank, RpcKind kind, const Kept& message = nullptr);
  void call_at(TimePoint due);

  const sdk::RpcHost core_;
  const sdk::Host host_;
  const int32_t rank_;
  const Settings settings_;
  Token token_ = {};
  EventFd wake_;
  Finished finished_;
  std::atomic<bool> asleep_ = false;
  std::atomic<bool> called_ = false;  // the thread is to look again before it sleeps

  std::mutex mutex_;  // guards what follows
  Sockets sockets_;   // its messages end in finished_
  std::vector<Peer> peers_;
  std::unordered_map<std::string, int32_t> keys_;  // workers by their public keys
  std::optional<sdk::Failure> ended_;
  bool aborted_ = false;
  TimePoint due_ = TimePoint::max();  // when keep_up has to look at the peers
  bool warned_ = false;

  std::vector<pollfd> polled_;  // the thread's; wake_ first
  TimePoint busy_until_;        // the thread's: it looks until then before it sleeps
  sdk::SpinPolicy spin_policy_{settings_.poll};
  std::thread thread_;
};

}  // namespace backplane::zmq
