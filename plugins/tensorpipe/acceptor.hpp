// SPDX-License-Identifier: Apache-2.0
//
// Accepts the pipes and express connections of other workers. TensorPipe's listener fails for good if a connection ends
// while it is being accepted: it is then replaced, and the endpoint with the new URLs is published, on the executor's
// thread, because a listener created on one of TensorPipe's threads has no address yet.
#pragma once

#include <tensorpipe/transport/listener.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "backplane/sdk/backend.hpp"
#include "endpoint.hpp"
#include "executor.hpp"
#include "limiter.hpp"
#include "transport.hpp"

namespace backplane::tensorpipe {

class Acceptor {
 public:
  using Listener = std::shared_ptr<::tensorpipe::Listener>;
  using ExpressListener = std::shared_ptr<::tensorpipe::transport::Listener>;

  // `own`: this worker's endpoint, whose URLs this class sets. `is_stopped`: the agent has ended. All references
  // outlive this object.
  Acceptor(const sdk::Context& context, const Transports& transports, Endpoint& own, TimedExecutor& executor,
           const std::atomic<bool>& is_stopped);

  // Listens and publishes the endpoint. Connecting workers wait until start. Throws.
  void listen();
  // Accepts from now on. The functions are called on TensorPipe's threads.
  void start(std::function<void(const Pipe&)> on_pipe, std::function<void(const Express&)> on_express);
  // Releases the listeners. Call once no callback can run any more.
  void clear();

 private:
  void accept(const Listener& listener);
  void accept_express(const ExpressListener& listener);
  void replace_listener();
  void limit_connections();

  const sdk::Host host_;
  base::LogLimit closed_;  // idle connections
  const int32_t rank_;
  const Transports& transports_;
  Endpoint& own_;
  TimedExecutor& executor_;
  const std::atomic<bool>& is_stopped_;
  const ConnectionLimiter limiter_;
  std::function<void(const Pipe&)> on_pipe_;
  std::function<void(const Express&)> on_express_;
  // Used by the thread that constructs the agent, then by the executor's.
  Listener listener_;
  ExpressListener express_listener_;
};

}  // namespace backplane::tensorpipe
