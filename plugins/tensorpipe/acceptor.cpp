// SPDX-License-Identifier: Apache-2.0
#include "acceptor.hpp"

#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "address.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr std::chrono::seconds kRetry(1);
constexpr std::chrono::seconds kLimiterInterval(1);

}  // namespace

Acceptor::Acceptor(const sdk::Context& context, const Transports& transports, Endpoint& own, TimedExecutor& executor,
                   const std::atomic<bool>& is_stopped)
    : host_(context.host),
      rank_(context.rank),
      transports_(transports),
      own_(own),
      executor_(executor),
      is_stopped_(is_stopped) {}

void Acceptor::listen() {
  if (transports_.express && !express_listener_) {
    own_.express = unique_name();
    express_listener_ = transports_.express->listen(own_.express);
  }
  std::vector<std::string> urls;
  for (const auto& url : transports_.urls) urls.push_back(url());
  listener_ = transports_.context->listen(urls);
  for (const std::string& transport : transports_.names) {
    (transport == "uv" ? own_.uv : own_.shm) = listener_->url(transport);
  }
  host_.store_set(endpoint_key(rank_), format_endpoint(own_));
}

void Acceptor::start(std::function<void(const Pipe&)> on_pipe, std::function<void(const Express&)> on_express) {
  on_pipe_ = std::move(on_pipe);
  on_express_ = std::move(on_express);
  accept(listener_);
  if (express_listener_) accept_express(express_listener_);
  const bool has_port = !own_.uv.empty();  // not if the workers use shm alone
  if (has_port) executor_.add([this] { limit_connections(); }, TimedExecutor::Clock::now() + kLimiterInterval);
}

void Acceptor::accept(const Listener& listener) {
  // Weak, because a listener keeps its callbacks.
  listener->accept([this, weak = std::weak_ptr(listener)](const ::tensorpipe::Error& error, const Pipe& pipe) {
    const Listener same = weak.lock();
    if (!same || is_stopped_) return;
    if (error) {  // a peer disconnected during the handshake, and the listener accepts no more connections
      host_.log(BP_LOG_INFO, "replacing the listener: " + error.what());
      same->close();
      return executor_.add([this] { replace_listener(); });
    }
    accept(same);
    on_pipe_(pipe);
  });
}

void Acceptor::accept_express(const ExpressListener& listener) {
  listener->accept([this, weak = std::weak_ptr(listener)](const ::tensorpipe::Error& error, const Express& express) {
    const ExpressListener same = weak.lock();
    if (!same || is_stopped_) return;
    if (error) {  // workers that connect later send everything on their pipes
      host_.log(BP_LOG_INFO, "no more express connections are accepted: " + error.what());
      return same->close();
    }
    accept_express(same);
    on_express_(express);
  });
}

void Acceptor::replace_listener() {
  try {
    listen();
    accept(listener_);
  } catch (const std::exception& e) {
    if (!is_stopped_)
      host_.log(BP_LOG_WARN, std::string("cannot listen for new connections, retrying every second: ") + e.what());
    executor_.add([this] { replace_listener(); }, TimedExecutor::Clock::now() + kRetry);
  }
}

// A listener that is closed closes the connections that it has not assigned to a pipe, and accept() replaces it.
void Acceptor::limit_connections() {
  executor_.add([this] { limit_connections(); }, TimedExecutor::Clock::now() + kLimiterInterval);
  if (!limiter_.is_exceeded(own_.uv)) return;
  host_.log(closed_, BP_LOG_WARN,
            "clients that send nothing have connected to " + own_.uv +
                "; closing their connections and listening on another port");
  listener_->close();
}

void Acceptor::clear() {
  listener_.reset();
  express_listener_.reset();
}

}  // namespace backplane::tensorpipe
