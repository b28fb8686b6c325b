// SPDX-License-Identifier: Apache-2.0
//
// The RPC agent. It sends on the pipes that it opens, one to each worker, and only reads those that other workers open.
//
// Beside each pipe through shared memory there is an express connection. Small messages use it and may overtake those
// on the pipe. A goodbye (a message without an id) must not overtake anything: it uses the pipe, carries the number of
// messages sent on the express connection before it, and the receiver defers it until these have arrived. If the pipe
// or the express connection breaks, both are dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "acceptor.hpp"
#include "backplane/sdk/rpc.hpp"
#include "endpoint.hpp"
#include "executor.hpp"
#include "receiver.hpp"
#include "sender.hpp"
#include "staging.hpp"
#include "transport.hpp"

namespace backplane::tensorpipe {

class Agent final : public sdk::RpcAgent {
 public:
  explicit Agent(const sdk::Context& context);
  ~Agent() override;

  void send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) override;
  void abort(const sdk::Failure& why) noexcept override;

 private:
  void start(const sdk::Context& context);

  std::atomic<bool> is_stopped_ = false;
  const std::shared_ptr<sdk::BlockPool> memory_;
  Transports transports_;
  Endpoint endpoint_;
  TimedExecutor executor_;
  Acceptor acceptor_;
  // Made once the endpoints of all workers are known, before anything is sent or accepted.
  std::optional<Staging> staging_;
  std::optional<Receiver> receiver_;
  std::optional<Sender> sender_;
};

}  // namespace backplane::tensorpipe
