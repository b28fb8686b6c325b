// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_connection.hpp"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "backplane/base/grace.hpp"
#include "liveness/membership_table.hpp"
#include "waiting.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

constexpr const char* kMalformed = "it sent malformed data";

std::string encode_cancel(uint64_t id) {
  StoreRequest cancel;
  cancel.operation = RequestKind::kCancel;
  cancel.number = static_cast<int64_t>(id);
  return encode(cancel);
}

}  // namespace

Connection::Connection(std::unique_ptr<Link> link, std::string where)
    : where_(std::move(where)),
      link_(std::move(link)),
      stream_(*this, std::move(link_->socket)),
      opener_(std::move(link_->opener)),
      heartbeat_timer_(link_->io),
      exit_handler_(ExitHandler::Order::kClients, [this](const Deadline& deadline) { leave_at_exit(deadline); }) {
  if (link_->sealer) stream_.seal_with(*link_->sealer);
  stream_.read();
  thread_ = start_quiet_thread("bp-store-client", [this] { run(); });
}

void Connection::run() {
  try {
    link_->io.run();
  } catch (const std::exception& e) {  // out of memory
    lose(e.what(), fmt::format("this rank could not read from it ({})", e.what()));
  }
}

Connection::~Connection() {
  link_->io.stop();
  thread_.join();
}

std::optional<Reply> Connection::call(StoreRequest request, const Deadline& deadline,
                                      const Interruption& interruption) {
  interruption.check();
  PendingCalls::Call call(calls_);
  request.id = call.id();
  post_frame(encode(request), call.id());
  try {
    if (call.wait(deadline, interruption)) return call.take_reply();
    post_frame(encode_cancel(call.id()), kPushId);
    if (call.wait(Deadline::after(base::grace::kStoreReply), interruption)) return call.take_reply();
  } catch (const Error&) {
    abandon(call.id());
    throw;
  }
  abandon(call.id());
  return std::nullopt;
}

void Connection::post_frame(std::string frame, uint64_t id) {
  asio::post(link_->io,
             [this, id, frame = std::move(frame)]() mutable { stream_.send({.head = std::move(frame), .id = id}); });
}

// Removes the request from the queue, or cancels it at the server.
void Connection::abandon(uint64_t id) {
  asio::post(link_->io, [this, id] {
    if (!stream_.discard(id)) stream_.send({.head = encode_cancel(id)});
  });
}

void Connection::on_read_error(const ErrorCode& error) {
  lose(error.message(), end_text(error, "the connection to it", link_->welcome.server_identity));
}

void Connection::on_write_error(const ErrorCode& error) {
  if (error == asio::error::no_memory) return on_read_error(error);
  stream_.shut_down();  // the server's last frames are still read, among them its notice of shutdown
}

void Connection::on_malformed() { lose("a frame that is empty or too large", kMalformed); }

void Connection::on_frame(std::span<char> frame) {
  std::optional<std::string_view> bytes = std::string_view(frame.data(), frame.size());
  if (opener_) bytes = opener_->open(frame);
  if (!bytes) return lose("a reply that is not authentic", "its connection was tampered with");
  auto reply = decode_reply(*bytes);
  if (!reply) return lose("a malformed reply", kMalformed);
  if (reply->id != kPushId) return calls_.complete(std::move(*reply));
  const auto push = decode_push(reply->payload);
  if (!push) return lose("a malformed reply", kMalformed);
  on_push(*push);
}

void Connection::on_push(const Push& push) {
  if (push.kind == Push::Kind::kShutdown) server_shut_down_ = true;
  if (push.kind == Push::Kind::kNotice && !exiting_) {
    subscriptions_.notify(push.scope, {push.rank, false, push.text});
  }
}

void Connection::lose(const std::string& text, const std::string& reason) {
  stream_.close();
  heartbeat_timer_.cancel();
  if (!calls_.fail_all(fmt::format("closed the connection ({})", text))) return;
  if (server_shut_down_ || exiting_) return;
  const Welcome& server = link_->welcome;
  Loss loss{server.server_rank, true, loss_text(server.server_rank, server.server_identity, reason)};
  if (server.server_rank < 0) {
    loss.text = fmt::format("the store at {} ({}), which detects lost ranks, is lost: {}", where_,
                            server.server_identity, reason);
  }
  subscriptions_.notify_all(loss);
}

uint64_t Connection::subscribe(const std::string& scope, LossSubscriptions::Notify notify) {
  const uint64_t subscription = subscriptions_.add(scope, std::move(notify));
  if (!has_heartbeat_.exchange(true)) {
    asio::post(link_->io, [this] {
      const auto now = FrameStream::Time::clock::now();
      suspension_.restart(now);
      stream_.touch(now);
      schedule_heartbeat();
    });
  }
  return subscription;
}

void Connection::schedule_heartbeat() {
  heartbeat_timer_.expires_after(std::chrono::nanoseconds(link_->welcome.heartbeat.tick_ns()));
  heartbeat_timer_.async_wait([this](const ErrorCode& stopped) {
    if (!stopped && stream_.open()) send_heartbeat();
  });
}

// Sends a heartbeat and checks that the server is alive.
void Connection::send_heartbeat() {
  const Heartbeat& heartbeat = link_->welcome.heartbeat;
  const auto now = FrameStream::Time::clock::now();
  if (suspension_.was_suspended(now, heartbeat) || stream_.has_unread()) stream_.touch(now);
  if (now - stream_.last_activity() > std::chrono::nanoseconds(heartbeat.limit_ns)) {
    const std::string reason = silence_text(heartbeat);
    return lose(reason, reason);
  }
  if (!stream_.sending()) stream_.send({.head = encode(StoreRequest{kPushId, RequestKind::kHeartbeat, 0, {}})});
  schedule_heartbeat();
}

void Connection::leave_at_exit(const Deadline& deadline) noexcept {
  exiting_ = true;
  if (!has_heartbeat_) return;  // no rank is enrolled
  try {
    const Interruption none([] {});
    call({0, RequestKind::kLeave, 0, {}}, deadline, none);
  } catch (const std::exception&) {
    // The store is lost.
  }
}

}  // namespace backplane::core
