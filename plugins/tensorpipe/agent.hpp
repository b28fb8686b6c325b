// SPDX-License-Identifier: Apache-2.0
//
// One pipe to each worker for what is sent to it, made with the first message and again after it broke; pipes that
// others have made are only read from. Everything runs on TensorPipe's threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backplane/sdk/rpc.hpp"
#include "context.hpp"
#include "device_maps.hpp"
#include "message.hpp"

namespace backplane::tensorpipe_plugin {

class Agent final : public sdk::RpcAgent {
 public:
  explicit Agent(const sdk::Context& context);
  ~Agent() override;

  void send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) override;
  void abort(const sdk::Failure& why) noexcept override;

 private:
  using Pipe = std::shared_ptr<tensorpipe::Pipe>;

  using Kept = std::shared_ptr<sdk::RpcMessage>;

  struct Peer {
    std::mutex mutex;  // guards the rest; never held while TensorPipe is called, which may run our callbacks
    std::string url;
    Token token = {};
    Pipe pipe;
    bool connecting = false;    // somebody is making a pipe
    std::vector<Kept> backlog;  // messages for the pipe that is being made
  };

  void tell();
  WorkerDevices learn(int32_t rank, int64_t timeout_ns);
  void connect(int32_t to);
  void write(int32_t to, const Pipe& pipe, const Kept& message);
  void forget(Peer& peer, const Pipe& pipe);
  void listen(const std::vector<std::string>& urls);
  void keep_listening();
  void accept(const std::shared_ptr<tensorpipe::Listener>& listener);
  void read(const Pipe& pipe);
  void drop(const Pipe& pipe);
  bool over() const;

  const sdk::RpcHost core_;
  const sdk::Host host_;
  const int32_t rank_;
  Token token_ = {};
  const std::string name_;
  Endpoint endpoint_;
  std::deque<Peer> peers_;
  const DeviceMaps maps_;
  DeviceMaps reverse_;

  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<tensorpipe::Listener> listener_;
  std::set<Pipe> incoming_;
  std::condition_variable changed_;
  bool deaf_ = false;  // the listener has failed
  bool over_ = false;

  std::thread listening_;
};

}  // namespace backplane::tensorpipe_plugin
