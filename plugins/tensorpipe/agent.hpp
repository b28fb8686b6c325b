// SPDX-License-Identifier: Apache-2.0
//
// One pipe to each worker for what is sent to it, made with the first message and again after it broke; pipes that
// others have made are only read from. Messages run on TensorPipe's threads; pipes and listeners are made on one of the
// agent's own, because that waits for the store.
//
// Beside a pipe through shared memory is an express connection: one of that transport's own, of which a pipe is made.
// What is small goes along it, for all that a pipe does to a message takes longer than to carry one. It overtakes what
// goes along the pipe; a goodbye, which must overtake nothing, goes along the pipe and says how much went along the
// express connection before, and its receiver waits for that. If either breaks both are given up.
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
#include "card.hpp"
#include "context.hpp"
#include "device_maps.hpp"
#include "message.hpp"
#include "staging.hpp"

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

  using Kept = std::shared_ptr<Outgoing>;

  // A goodbye that came before what was sent before it.
  struct Early {
    Pipe pipe;
    std::unique_ptr<Arrival> arrival;
  };

  struct Peer {
    Token token = {};          // set once, by the constructor
    Pipe pipe;                 // none: the next message has one made
    bool wanted = false;       // the agent's thread makes a pipe, and writes the backlog to it, or the first one of
                               // that is being copied from a device
    std::deque<Kept> backlog;  // what was sent meanwhile
    std::deque<Kept> unread;   // of those that want a receipt
    Express express;           // beside the pipe
    bool is_open = false;      // it was greeted there; until then what is small goes along the pipe
    Before sent;               // along it; it has the number of its pipe
    bool no_express = false;   // one broke, and its pipe did not
    // Of what it sends.
    Before heard;  // along its express connection: the last one, and how many messages
    std::vector<Early> early;
    uint64_t lost = 0;  // up to this one, its express connections are known to be lost, with the pipes beside them
  };
  // What is known of a pipe that is read. For its callbacks, of which TensorPipe runs one at a time; the numbers go
  // down also where devices' buffers are placed, once what they count was delivered.
  struct Incoming {
    int32_t from = -1;              // who has sent the message before, -1 if there was none
    std::atomic<int> arriving = 0;  // messages that are delivered, in their order, once all of them is there
    std::atomic<int> placing = 0;   // those of them that are placed on devices, or behind such
    uint64_t express = 0;           // beside which its sender has it
  };
  void tell(const ::tensorpipe::Listener& listener);
  void tend();
  void connect(int32_t to);
  void write_backlog(int32_t to);
  void stage(int32_t to, const Kept& message);
  void write(int32_t to, const Pipe& pipe, const Kept& message);
  void watch(int32_t to, const Pipe& pipe);
  bool forget(int32_t to, const Pipe& pipe);
  void take_receipt(int32_t to);
  std::shared_ptr<::tensorpipe::Listener> listen();
  bool listen_again();
  void accept(const std::shared_ptr<::tensorpipe::Listener>& listener);
  void read(const Pipe& pipe, const std::shared_ptr<Incoming>& incoming);
  void take(const Pipe& pipe, const std::shared_ptr<Incoming>& incoming, std::unique_ptr<Arrival> arrival);
  void place(const Pipe& pipe, const std::shared_ptr<Incoming>& incoming, std::unique_ptr<Arrival> arrival);
  void deliver(const Pipe& pipe, std::unique_ptr<Arrival> arrival);
  void hand_over(const Pipe& pipe, std::unique_ptr<Arrival> arrival);
  void drop(const Pipe& pipe, int32_t from, uint64_t express, const sdk::Failure& why);
  void lose(int32_t from, uint64_t express, const sdk::Failure& why);

  void offer_express();
  void connect_express(int32_t to, const Card& card);
  void write_express(int32_t to, const Express& express, const Kept& message, const Before& before);
  void watch_express(int32_t to, const Express& express);
  bool open_express(int32_t to, const Express& express);
  bool forget_express(int32_t to, const Express& express);
  void accept_express(const std::shared_ptr<::tensorpipe::transport::Listener>& listener);
  void read_express(const Express& express, const std::shared_ptr<Incoming>& incoming);
  void drop_express(const Express& express, const Incoming& incoming, const sdk::Failure& why);
  void count_express(int32_t from, uint64_t express, bool all = false);
  bool is_early(const Pipe& pipe, std::unique_ptr<Arrival>* arrival);
  std::vector<Early> take_early(int32_t from, const std::function<bool(const Early&)>& due);
  void hand_over(std::vector<Early> early);

  const sdk::RpcHost core_;
  const sdk::Host host_;
  const int32_t rank_;
  const std::shared_ptr<sdk::BlockPool> memory_;
  Endpoint endpoint_;
  Card card_;  // its URLs are those of the last listener: for the constructor, and then for the agent's thread

  // Guards what follows. Never held while TensorPipe is called, nor while one of its objects is destroyed: either may
  // run callbacks of other threads on this one.
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::deque<int32_t> wanted_;  // to whom pipes are to be made, or backlogs written
  std::shared_ptr<::tensorpipe::Listener> listener_;
  std::set<Pipe> incoming_;
  std::shared_ptr<::tensorpipe::transport::Listener> express_listener_;
  std::set<Express> incoming_express_;
  std::condition_variable changed_;
  bool deaf_ = false;               // the listener has failed
  std::atomic<bool> over_ = false;  // written with the lock

  std::optional<Staging> staging_;  // made before anything is sent or accepted
  std::thread thread_;
};

}  // namespace backplane::tensorpipe
