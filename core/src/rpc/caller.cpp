// SPDX-License-Identifier: Apache-2.0
#include "rpc/caller.hpp"

#include <algorithm>

#include "backplane/base/grace.hpp"
#include "log.hpp"
#include "rpc/current_error.hpp"
#include "rpc/inbound_call.hpp"

namespace backplane::core::rpc {
namespace {

constexpr int64_t kMinRetryNs = INT64_C(1) * 1000000000;
constexpr int64_t kMaxRetryNs = INT64_C(30) * 1000000000;

thread_local int running_callbacks = 0;  // of calls that end on this thread

bool is_about_references(Kind kind) { return kind == Kind::kFork || kind == Kind::kDrop || kind == Kind::kAbandon; }

}  // namespace

Caller::Caller(Context* context, Connection* connection, bool detects_deaths)
    : context_(*context),
      connection_(*connection),
      detects_deaths_(detects_deaths),
      calls_([this](uint64_t number) { end(number, Error(BP_TIMEOUT, "")); }) {}

int64_t Caller::resolve_timeout(int64_t timeout_ns) const { return timeout_or(timeout_ns, context_.rpc_timeout_ns); }

int64_t Caller::retry_timeout_ns() const {
  const int64_t timeout_ns = context_.rpc_timeout_ns;
  return timeout_ns < 0 ? kMaxRetryNs : std::clamp(timeout_ns, kMinRetryNs, kMaxRetryNs);
}

void Caller::require_new_calls() const {
  if (!refuses_.load() || running_callbacks > 0 || InboundCall::current != nullptr || context_.executor.inside())
    return;
  fail(BP_CANCELLED, "worker '{}' begins no new calls: its shutdown has begun", context_.peers.own_name());
}

void Caller::call_done(const Call& call, std::shared_ptr<Payload> reply, const Error* error) {
  struct Running {
    Running() { ++running_callbacks; }
    ~Running() { --running_callbacks; }
  };
  const Running running;
  call.done(std::move(reply), error);
}

uint64_t Caller::begin(int32_t to, const Header& header, uint64_t request_bytes, int64_t* timeout_ns, Done done) {
  if (!is_about_references(header.kind)) require_new_calls();
  *timeout_ns = resolve_timeout(*timeout_ns);
  Call call = {to, header.kind, header.function, *timeout_ns, {}, std::move(done), header.value};
  call.request_bytes = request_bytes;
  const uint64_t number = calls_.add(std::move(call), Deadline::after(*timeout_ns));
  context_.metrics.peers[static_cast<size_t>(to)].calls_sent.fetch_add(1, std::memory_order_relaxed);
  return number;
}

uint64_t Caller::request(int32_t to, Header header, Content content, int64_t timeout_ns, Done done) {
  const uint64_t number = begin(to, header, content.bytes(), &timeout_ns, std::move(done));
  header.call = number;
  if (const auto absence = context_.peers.absence(to)) {
    end(number, *absence);
  } else {
    send(to, header, std::move(content), timeout_ns);
  }
  return number;
}

void Caller::send(int32_t to, const Header& header, Content content, int64_t timeout_ns) {
  try {
    connection_.send(to, header, std::move(content), header.call, timeout_ns);
  } catch (...) {
    const Error error = current_error();
    if (const ReleaseForks release = calls_.take_release_forks(header.call)) release(false);
    on_send_failed(to, header.call, error);
  }
}

void Caller::end(uint64_t number, const Error& why, int32_t to) {
  const Completion completion(this);
  const std::optional<Call> call = calls_.take(number, to);
  if (!call) return;
  const Error& error = why.status() == BP_TIMEOUT && call->failure ? *call->failure : why;
  PeerMetrics& peer = context_.metrics.peers[static_cast<size_t>(call->to)];
  peer.errors.fetch_add(1, std::memory_order_relaxed);
  if (error.status() == BP_TIMEOUT) peer.timeouts.fetch_add(1, std::memory_order_relaxed);
  context_.recorder.add({false, call->to, number, call->kind, call->function, call->begun, Deadline::Clock::now(),
                         error.status(), call->request_bytes});
  if (call->release_forks) call->release_forks(true);
  cancel_at_callee(*call, number, error);
  const Error described = describe(*call, error);
  call_done(*call, nullptr, &described);
}

void Caller::cancel_at_callee(const Call& call, uint64_t number, const Error& error) {
  // If a reply was lost with a connection, the callee lives, but no caller waits for it.
  const bool callee_may_run = error.status() == BP_TIMEOUT || error.status() == BP_CANCELLED ||
                              (error.status() == BP_PEER_LOST && !context_.peers.absence(call.to));
  if (!callee_may_run || is_about_references(call.kind)) return;
  SentCancels::Cancel cancel;
  cancel.call = number;
  cancel.timeout_ns = call.timeout_ns < 0 ? BP_NO_TIMEOUT : std::max(call.timeout_ns, retry_timeout_ns());
  if (call.kind == Kind::kFetch) cancel.value = call.value;
  // The cancellation uses the next connection, which may break as well.
  if (error.status() == BP_PEER_LOST) cancel.resends_left = SentCancels::kMaxRounds;
  cancels_.add(call.to, cancel);
  send_cancel(call.to, cancel);
}

void Caller::send_cancel(int32_t to, const SentCancels::Cancel& cancel) {
  Header header;
  header.kind = Kind::kCancel;
  header.call = cancel.call;
  header.value = cancel.value;
  try {
    connection_.send(to, header, {}, Connection::kUnreported, cancel.timeout_ns);
  } catch (const std::exception& e) {
    log(BP_LOG_DEBUG, "rpc: cannot send the cancellation of call {} to {}: {}", cancel.call,
        context_.peers.describe(to), e.what());
  }
}

void Caller::resend_cancels(int32_t to) {
  if (context_.peers.absence(to)) return;
  for (const auto& cancel : cancels_.take_resends(to, Deadline::Clock::now())) send_cancel(to, cancel);
}

Error Caller::describe(const Call& call, const Error& error) const {
  const std::string worker = context_.peers.describe(call.to);
  const char* const action = call.kind == Kind::kFetch ? "fetching a value" : "passing on a reference";
  const std::string subject = call.function.empty() ? fmt::format("{} of {}", action, worker)
                                                    : fmt::format("'{}' on {}", call.function, worker);
  if (error.status() == BP_TIMEOUT && *error.what() == '\0') {
    return Error(BP_TIMEOUT, fmt::format("{} did not reply within {} s", subject, seconds(call.timeout_ns)), call.to);
  }
  return Error(error.status(), fmt::format("{} failed: {}", subject, error.what()), call.to, error.native_code());
}

void Caller::on_reply(int32_t from, const Header& header, std::shared_ptr<Payload> payload) {
  const Completion completion(this);
  const std::optional<Call> call = calls_.take(header.call, from);
  if (!call) return;  // it timed out or was cancelled
  PeerMetrics& peer = context_.metrics.peers[static_cast<size_t>(from)];
  const auto now = Deadline::Clock::now();
  context_.recorder.add({false, from, header.call, call->kind, call->function, call->begun, now, header.status,
                         call->request_bytes, payload->content_bytes()});
  if (header.kind == Kind::kReply) {
    peer.round_trips.add((now - call->begun).count());
    return call_done(*call, std::move(payload), nullptr);
  }
  peer.errors.fetch_add(1, std::memory_order_relaxed);
  const bool is_known = header.status >= BP_INVALID && header.status <= BP_INTERNAL && header.status != BP_AGAIN;
  const Error error = describe(*call, Error(is_known ? header.status : BP_INTERNAL, header.function));
  call_done(*call, nullptr, &error);
}

void Caller::on_send_failed(int32_t to, uint64_t number, const Error& error) {
  if (error.status() == BP_PEER_LOST && detects_deaths_) {
    calls_.fail_at(number, to, error, Deadline::after(base::grace::kDeath));
  } else {
    end(number, error, to);
  }
}

void Caller::on_connection_lost(int32_t peer, const Error& error) {
  calls_.fail_all_at(peer, error, Deadline::after(base::grace::kDeath));
  resend_cancels(peer);
}

void Caller::on_replies_lost(int32_t from, uint64_t last) {
  const Error error(BP_PEER_LOST, "the reply may have been lost with a broken connection", from);
  calls_.fail_all_at(from, error, Deadline::after(base::grace::kDeath), last);
  resend_cancels(from);
}

void Caller::on_peer_gone(int32_t peer, const Error& why) {
  cancels_.forget(peer);
  calls_.fail_all_at(peer, why, Deadline::after(0));
}

void Caller::close(const Error& why) {
  for (const uint64_t number : calls_.close(why)) end(number, why);
  calls_.stop();
}

}  // namespace backplane::core::rpc
