// SPDX-License-Identifier: Apache-2.0
#include "rpc/server.hpp"

#include <algorithm>

#include "log.hpp"
#include "rpc/current_error.hpp"

namespace backplane::core::rpc {
namespace {

// The id of a reply: its call's number, the attempt to report its loss, and a bit that no request's id has.
constexpr uint64_t kReplyBit = uint64_t{1} << 63;
constexpr int kAttemptShift = 60;
constexpr uint64_t kMaxAttempts = 3;
constexpr uint64_t kNumberMask = (uint64_t{1} << kAttemptShift) - 1;

}  // namespace

bool Server::is_reply(uint64_t id) { return (id & kReplyBit) != 0; }

void Server::serve(int32_t from, Header header, std::shared_ptr<Payload> payload, const Error* problem) {
  arrived_.fetch_add(1);
  PeerMetrics& peer = context_.metrics.peers[static_cast<size_t>(from)];
  peer.calls_received.fetch_add(1, std::memory_order_relaxed);
  for (uint64_t last = peer.last_call;
       last < header.call && !peer.last_call.compare_exchange_weak(last, header.call);) {
  }
  const uint64_t call = header.call;
  try {
    if (problem != nullptr) throw Error(*problem);
    if (header.kind == Kind::kCall || header.kind == Kind::kRemote) {
      serve_call(from, std::move(header), std::move(payload));
    } else if (header.kind == Kind::kFetch) {
      serve_fetch(from, header);
    } else {
      serve_reference(from, header);
    }
  } catch (...) {
    reply_error(from, call, current_error());
  }
}

void Server::serve_call(int32_t from, Header header, std::shared_ptr<Payload> payload) {
  auto call = std::make_shared<InboundCall>();
  call->worker = std::shared_ptr<Worker>(context_.worker);
  call->from = from;
  call->header = std::move(header);
  call->payload = std::move(payload);
  if (call->header.kind == Kind::kRemote && !create_value(from, call->header)) return;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) fail(BP_CANCELLED, "this worker has left");
    if (!calls_.emplace(std::pair(from, call->header.call), call).second) {
      fail(BP_INVALID, "call number {} of worker {} is in use", call->header.call, from);
    }
    if (cancels_.take(from, call->header.call)) call->cancelled = true;
  }
  call->function = find_function(call->header.function);
  // A call to itself arrives on the caller's thread, which may hold locks of the program.
  call->is_inline = from != context_.peers.own_rank() && call->function && call->function->is_inline;
  if (call->is_inline) return run(call);
  // The table keeps it until then. Two pointers fit into the function object without an allocation.
  context_.run([this, queued = call.get()] { run(queued->shared_from_this()); });
}

// Enters the future value of kRemote and confirms it. False if no reference to it is left.
bool Server::create_value(int32_t from, const Header& header) {
  if (header.value.maker != from || header.fork.maker != from) {
    fail(BP_INVALID, "worker {} creates a value under the number of worker {}", from, header.value.maker);
  }
  Values& values = references_.values();
  const bool is_wanted = values.create(header.value, header.fork, from, header.function);
  if (context_.peers.absence(from)) {  // reported before the value was entered
    context_.discard(values.drop(header.value, header.fork));
    return false;
  }
  reply(from, header.call, {});
  return is_wanted;
}

void Server::run(const std::shared_ptr<InboundCall>& call) {
  InboundCall* const outer = std::exchange(InboundCall::current, call.get());
  std::shared_ptr<Value> value;
  std::optional<Error> error;
  Content result;
  const auto begun = Deadline::Clock::now();
  call->started = true;
  try {
    if (call->cancelled) fail(BP_CANCELLED, "the caller no longer waits");
    value = invoke(*call);
  } catch (...) {
    error.emplace(current_error());
  }
  InboundCall::current = outer;
  const auto ended = Deadline::Clock::now();
  context_.metrics.peers[static_cast<size_t>(call->from)].run_times.add((ended - begun).count());
  const Header& header = call->header;
  try {
    if (!error && header.kind == Kind::kCall && !call->cancelled) result = Value::encode(value, true);
  } catch (...) {
    error.emplace(current_error());
  }
  context_.recorder.add({true, call->from, header.call, header.kind, header.function, call->arrived, ended,
                         error ? error->status() : BP_OK, call->payload->content_bytes(), result.bytes()});
  call->payload.reset();
  call->ended = true;
  finish(*call, std::move(value), error ? &*error : nullptr, std::move(result));
  const std::lock_guard lock(mutex_);
  calls_.erase({call->from, header.call});
  ended_.notify_all();
}

std::shared_ptr<Value> Server::invoke(const InboundCall& call) const {
  if (!call.function) fail_unknown_function(call.header.function);
  const bp_rpc_payload arguments = {{}, call.payload};
  bp_rpc_value made = {};
  made.struct_size = sizeof(bp_rpc_value);
  bp_error err;
  bp_error_init(&err);
  const int32_t status = call.function->run(call.function->ctx, &arguments, &made, &err);
  if (status != BP_OK) throw_report(status, err, "");
  return std::make_shared<Value>(made);
}

// `value` is destroyed before the call is removed from the table.
void Server::finish(const InboundCall& call, std::shared_ptr<Value> value, const Error* error, Content result) {
  const Header& header = call.header;
  if (header.kind == Kind::kRemote && error != nullptr) {
    references_.values().set(header.value,
                             Error(error->status(), fmt::format("'{}' failed: {}", header.function, error->what()),
                                   context_.peers.own_rank(), error->native_code()));
  } else if (header.kind == Kind::kRemote) {
    references_.values().set(header.value, std::move(value));
  } else if (call.cancelled) {
    return;
  } else if (error != nullptr) {
    reply_error(call.from, header.call, *error);
  } else {
    try {
      reply(call.from, header.call, std::move(result));
    } catch (...) {
      reply_error(call.from, header.call, current_error());
    }
  }
}

void Server::serve_fetch(int32_t from, const Header& header) {
  Values& values = references_.values();
  const auto ready = [self = context_.keep_alive(this), from, call = header.call](const std::shared_ptr<Value>& value,
                                                                                  const Error* error) {
    if (error != nullptr) return self->reply_error(from, call, *error);
    self->context_.run([self, from, call, value] {
      try {
        self->reply(from, call, Value::encode(value, false));
      } catch (...) {
        self->reply_error(from, call, current_error());
      }
    });
  };
  values.when_ready(header.value, ready, from, header.call);
  if (cancels_.take(from, header.call)) values.stop_waiting(header.value, from, header.call);
}

void Server::serve_reference(int32_t from, const Header& header) {
  if (header.kind == Kind::kFork) references_.on_fork(from, header);
  if (header.kind == Kind::kDrop) references_.on_drop(header);
  if (header.kind == Kind::kAbandon) references_.on_abandon(from, header);
  reply(from, header.call, {});
}

void Server::reply(int32_t to, uint64_t call, Content content) {
  Header header;
  header.kind = Kind::kReply;
  header.call = call;
  if (content.refs.empty()) return send_reply(to, call, header, std::move(content));
  references_.register_forks(
      to, std::move(header), std::move(content),
      [self = context_.keep_alive(this), to, call](const Header& registered, Content sent, const Error* error) {
        if (error != nullptr) return self->reply_error(to, call, *error);
        self->send_reply(to, call, registered, std::move(sent));
      });
}

void Server::send_reply(int32_t to, uint64_t call, const Header& header, Content content) {
  const uint64_t number = call & kNumberMask;
  try {
    references_.forks().add_reply(to, number, header.refs);
    connection_.send(to, header, std::move(content), number | kReplyBit, context_.rpc_timeout_ns);
  } catch (...) {
    const Error e = current_error();
    references_.forks().take_reply(to, number);
    references_.drop(header.refs);
    reply_error(to, call, Error(e.status(), fmt::format("the reply could not be sent: {}", e.what())));
  }
}

void Server::reply_error(int32_t to, uint64_t call, const Error& error, uint64_t attempt) {
  Header header;
  header.kind = Kind::kError;
  header.call = call;
  header.status = error.status();
  header.function = error.what();
  try {
    const uint64_t id = (call & kNumberMask) | kReplyBit | attempt << kAttemptShift;
    connection_.send(to, header, {}, id, context_.rpc_timeout_ns);
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: cannot send an error to {}: {}", context_.peers.describe(to), e.what());
  }
}

void Server::on_reply_failed(int32_t to, uint64_t id, const Error& error) {
  references_.abandon(to, references_.forks().take_reply(to, id & kNumberMask));
  const uint64_t attempt = (id & ~kReplyBit) >> kAttemptShift;
  if (attempt >= kMaxAttempts) return;
  // With these, nothing was sent: the connection did not break.
  const bool was_sent = error.status() != BP_INVALID && error.status() != BP_RESOURCE;
  const Error reported(was_sent ? BP_PEER_LOST : error.status(),
                       fmt::format("the reply {}: {}", was_sent ? "was lost" : "could not be sent", error.what()),
                       context_.peers.own_rank());
  reply_error(to, id & kNumberMask, reported, attempt + 1);
}

void Server::on_connection_lost(int32_t peer) {
  Header header;
  header.kind = Kind::kRepliesLost;
  header.call = context_.metrics.peers[static_cast<size_t>(peer)].last_call.load();
  if (header.call == 0 || context_.peers.absence(peer)) return;
  try {
    connection_.send(peer, header, {}, Connection::kUnreported, context_.rpc_timeout_ns);
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: cannot tell {} of lost replies: {}", context_.peers.describe(peer), e.what());
  }
}

void Server::on_cancel(int32_t from, const Header& header) {
  references_.abandon(from, references_.forks().take_reply(from, header.call & kNumberMask));
  if (header.value.maker >= 0) {      // a fetch
    cancels_.add(from, header.call);  // first: the fetch may arrive at the same time
    if (references_.values().stop_waiting(header.value, from, header.call)) cancels_.take(from, header.call);
    return;
  }
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find({from, header.call});
  if (found != calls_.end()) {
    found->second->cancelled = true;
  } else {
    cancels_.add(from, header.call);
  }
}

void Server::on_peer_gone(int32_t peer) {
  cancels_.forget(peer);
  const std::lock_guard lock(mutex_);
  for (const auto& [key, call] : calls_) {
    if (key.first == peer) call->cancelled = true;
  }
}

void Server::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& [key, call] : calls_) call->cancelled = true;
}

std::vector<Server::Status> Server::calls() const {
  std::vector<Status> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, call] : calls_) {
    const Header& header = call->header;
    all.push_back({key.first, header.call, header.kind, header.function, call->arrived, call->started, call->ended,
                   call->cancelled});
  }
  return all;
}

bool Server::is_idle() const {
  const std::lock_guard lock(mutex_);
  return calls_.empty();
}

void Server::wait_for_end(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, limit);
}

}  // namespace backplane::core::rpc
