// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_connection.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
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
  cancel.operation = Operation::kCancel;
  cancel.number = static_cast<int64_t>(id);
  return encode(cancel);
}

}  // namespace

// Registers a call while its stack frame exists. Constructed and destroyed with the mutex held.
class Connection::Entry {
 public:
  Entry(std::map<uint64_t, Pending*>& table, uint64_t id, Pending& pending) : table_(table), id_(id) {
    table_.emplace(id, &pending);
  }
  ~Entry() { table_.erase(id_); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  std::map<uint64_t, Pending*>& table_;
  const uint64_t id_;
};

Connection::Connection(std::unique_ptr<Link> link, std::string where)
    : where_(std::move(where)),
      link_(std::move(link)),
      heartbeat_timer_(link_->io),
      exit_handler_(ExitHandler::Order::kClient, [this](const Deadline& deadline) { leave_at_exit(deadline); }) {
  read_size();
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
  std::unique_lock lock(mutex_);
  request.id = ++last_id_;
  lock.unlock();
  std::string frame = encode(request);  // without the lock: it may be large

  lock.lock();
  interruption.check();
  check_alive();
  Pending pending;
  const Entry entry(pending_, request.id, pending);
  enqueue({request.id, false, std::move(frame)});
  try {
    if (wait_for_reply(pending, lock, deadline, interruption)) return std::move(pending.reply);
    enqueue({request.id, true, encode_cancel(request.id)});
    if (wait_for_reply(pending, lock, Deadline::after(base::grace::kStoreReply), interruption))
      return std::move(pending.reply);
  } catch (const Error&) {
    abandon(request.id);
    throw;
  }
  abandon(request.id);
  return std::nullopt;
}

bool Connection::wait_for_reply(Pending& pending, std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                                const Interruption& interruption) {
  while (!pending.done) {
    check_alive();
    interruption.check();
    if (deadline.passed()) return false;
    wait_on(pending.replied, lock, deadline);
  }
  return true;
}

// Cancels the request at the server, or removes it from the queue.
void Connection::abandon(uint64_t id) {
  if (!lost_.empty()) return;
  const auto queued =
      std::find_if(outgoing_.begin(), outgoing_.end(), [id](const Outgoing& one) { return one.id == id; });
  if (queued == outgoing_.end()) {
    enqueue({id, true, encode_cancel(id)});
  } else if (!queued->cancels) {
    std::erase_if(outgoing_, [id](const Outgoing& one) { return one.id == id; });
  }
}

void Connection::check_alive() const {
  if (lost_.empty()) return;
  fail(BP_PEER_LOST, "the store at {} {}; look at the output of the process that hosts it (rank 0 or the launcher)",
       where_, lost_);
}

void Connection::enqueue(Outgoing outgoing) {
  outgoing_.push_back(std::move(outgoing));
  if (writing_) return;
  writing_ = true;
  asio::post(link_->io, [this] { write_next(); });
}

void Connection::wake() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pending] : pending_) pending->replied.notify_one();
}

void Connection::write_next() {
  {
    const std::lock_guard lock(mutex_);
    writing_ = !outgoing_.empty() && lost_.empty();
    if (!writing_) return;
    writing_frame_ = std::move(outgoing_.front().frame);
    outgoing_.pop_front();
  }
  if (link_->sealer) writing_frame_ = link_->sealer->seal(std::string_view(writing_frame_).substr(kSizeBytes));
  const auto moved = [this] { last_received_ = Clock::now(); };
  asio::async_write(link_->socket, asio::buffer(writing_frame_), transfer_frame(kSocketBuffers, moved),
                    [this](const ErrorCode& error, size_t) {
                      writing_frame_ = std::string();
                      if (!error) return write_next();
                      // The server's last frames are still read, among them its notice of shutdown.
                      ErrorCode ignored;
                      link_->socket.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
                    });
}

void Connection::read_size() {
  asio::async_read(link_->socket, asio::buffer(size_), [this](const ErrorCode& error, size_t) {
    if (error) return lose(error);
    last_received_ = Clock::now();
    const size_t size = decode_size(size_.data());
    if (size > kMaxFrameSize + (link_->opener ? kSealBytes : 0)) return lose("a reply that is too large", kMalformed);
    read_body(size);
  });
}

void Connection::read_body(size_t size) {
  body_.resize(size);
  const auto moved = [this] { last_received_ = Clock::now(); };
  asio::async_read(link_->socket, asio::buffer(body_), transfer_frame(0, moved),
                   [this](const ErrorCode& error, size_t) {
                     if (error) return lose(error);
                     if (link_->opener && !link_->opener->open(body_)) {
                       return lose("a reply that is not authentic", "its connection was tampered with");
                     }
                     auto reply = decode_reply(body_);
                     body_ = std::string();
                     if (!reply || !receive(std::move(*reply))) {
                       return lose("a malformed reply", kMalformed);
                     }
                     read_size();
                   });
}

bool Connection::receive(Reply reply) {
  if (reply.id == kPushId) {
    const auto push = decode_push(reply.payload);
    return push && receive_push(*push);
  }
  complete(std::move(reply));
  return true;
}

bool Connection::receive_push(const Push& push) {
  if (push.kind == Push::Kind::kShutdown) server_shut_down_ = true;
  if (push.kind != Push::Kind::kNotice || exiting_) return true;
  const std::lock_guard lock(subscriptions_mutex_);
  for (auto& [id, subscription] : subscriptions_) {
    if (subscription.scope == push.scope && subscription.reported.insert(push.rank).second)
      subscription.notify({push.rank, false, push.text});
  }
  return true;
}

void Connection::complete(Reply reply) {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(reply.id);
  if (found == pending_.end()) return;
  found->second->reply = std::move(reply);
  found->second->done = true;
  found->second->replied.notify_one();
}

void Connection::lose(const ErrorCode& error) { lose(error.message(), end_text(error)); }

void Connection::lose(const std::string& text, const std::string& reason) {
  ErrorCode ignored;
  link_->socket.close(ignored);
  heartbeat_timer_.cancel();
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) return;
    lost_ = fmt::format("closed the connection ({})", text);
    outgoing_.clear();
    for (const auto& [id, pending] : pending_) pending->replied.notify_one();
  }
  if (!server_shut_down_ && !exiting_) notify_all(reason);
}

void Connection::notify_all(const std::string& reason) {
  const Welcome& server = link_->welcome;
  std::string text = loss_text(server.server_rank, server.server_identity, reason);
  if (server.server_rank < 0) {
    text = fmt::format("the store at {} ({}), which detects lost ranks, is lost: {}", where_, server.server_identity,
                       reason);
  }
  const std::lock_guard lock(subscriptions_mutex_);
  for (const auto& [id, subscription] : subscriptions_) subscription.notify({server.server_rank, true, text});
}

uint64_t Connection::subscribe(const std::string& scope, std::function<void(const Loss&)> notify) {
  const std::lock_guard lock(subscriptions_mutex_);
  subscriptions_.emplace(++last_subscription_, Subscription{scope, std::move(notify), {}});
  if (!std::exchange(sends_heartbeats_, true)) {
    asio::post(link_->io, [this] {
      last_tick_ = last_received_ = Clock::now();
      schedule_heartbeat();
    });
  }
  return last_subscription_;
}

void Connection::unsubscribe(uint64_t subscription) {
  const std::lock_guard lock(subscriptions_mutex_);
  subscriptions_.erase(subscription);
}

void Connection::schedule_heartbeat() {
  heartbeat_timer_.expires_after(std::chrono::nanoseconds(link_->welcome.heartbeat.tick_ns()));
  heartbeat_timer_.async_wait([this](const ErrorCode& stopped) {
    if (!stopped && link_->socket.is_open()) send_heartbeat();
  });
}

// Sends a heartbeat and checks that the server is alive.
void Connection::send_heartbeat() {
  const Heartbeat& heartbeat = link_->welcome.heartbeat;
  const auto now = Clock::now();
  ErrorCode error;
  // If this process was suspended, the silence may be its own.
  const bool late = now - last_tick_ > std::chrono::nanoseconds(heartbeat.tick_ns() + heartbeat.interval_ns);
  if (late || (link_->socket.available(error) > 0 && !error)) last_received_ = now;
  last_tick_ = now;
  if (now - last_received_ > std::chrono::nanoseconds(heartbeat.limit_ns)) {
    const std::string reason = silence_text(heartbeat);
    return lose(reason, reason);
  }
  {
    const std::lock_guard lock(mutex_);
    const bool queued =
        std::any_of(outgoing_.begin(), outgoing_.end(), [](const Outgoing& one) { return one.id == kPushId; });
    if (!queued) enqueue({kPushId, false, encode(StoreRequest{kPushId, Operation::kHeartbeat, 0, {}})});
  }
  schedule_heartbeat();
}

void Connection::leave_at_exit(const Deadline& deadline) noexcept {
  exiting_ = true;
  try {
    {
      const std::lock_guard lock(subscriptions_mutex_);
      if (!sends_heartbeats_) return;  // no rank is enrolled
    }
    const Interruption none([] {});
    call({0, Operation::kLeave, 0, {}}, deadline, none);
  } catch (const std::exception&) {
    // The store is lost.
  }
}

}  // namespace backplane::core
