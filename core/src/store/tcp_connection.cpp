// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_connection.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "liveness/membership_table.hpp"
#include "waiting.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

// How long after its deadline a call waits for the server to say what is missing: longer than a busy machine takes.
constexpr int64_t kGraceNs = 1'000'000'000;

std::string encode_cancel(uint64_t id) {
  StoreRequest cancel;
  cancel.operation = Operation::kCancel;
  cancel.number = static_cast<int64_t>(id);
  return encode(cancel);
}

}  // namespace

// Registers a call for as long as its stack frame lives, so that an answer never finds a dead one. Made and destroyed
// with the mutex held.
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
      beat_timer_(link_->io),
      exit_handler_(ExitHandler::Turn::kClients, [this](const Deadline& deadline) { part(deadline); }) {
  read_size();
  thread_ = start_quiet_thread("bp-store-client", [this] { run(); });
}

void Connection::run() {
  try {
    link_->io.run();
  } catch (const std::exception& e) {  // out of memory
    lose(e.what(), fmt::format("this rank could not listen to it ({})", e.what()));
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
  std::string frame = encode(request);  // may be large, so without the lock

  lock.lock();
  interruption.check();
  check_alive();
  Pending pending;
  const Entry entry(pending_, request.id, pending);
  enqueue({request.id, false, std::move(frame)});
  try {
    if (wait_for_answer(pending, lock, deadline, interruption)) return std::move(pending.reply);
    enqueue({request.id, true, encode_cancel(request.id)});
    if (wait_for_answer(pending, lock, Deadline::after(kGraceNs), interruption)) return std::move(pending.reply);
  } catch (const Error&) {
    abandon(request.id);
    throw;
  }
  abandon(request.id);
  return std::nullopt;
}

bool Connection::wait_for_answer(Pending& pending, std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                                 const Interruption& interruption) {
  while (!pending.done) {
    check_alive();
    interruption.check();
    if (deadline.passed()) return false;
    wait_on(pending.answered, lock, deadline);
  }
  return true;
}

// The server must not keep a waiter that nobody waits for, nor this queue a request that nobody wants.
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
  fail(BP_PEER_LOST, "the store at {} {}: is the process that hosts it (rank 0 or the launcher) still alive?", where_,
       lost_);
}

void Connection::enqueue(Outgoing outgoing) {
  outgoing_.push_back(std::move(outgoing));
  if (writing_) return;
  writing_ = true;
  asio::post(link_->io, [this] { write_next(); });
}

void Connection::wake() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pending] : pending_) pending->answered.notify_one();
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
  const auto moved = [this] { heard_ = Clock::now(); };
  asio::async_write(link_->socket, asio::buffer(writing_frame_), transfer_frame(kSocketBuffers, moved),
                    [this](const ErrorCode& error, size_t) {
                      writing_frame_ = std::string();
                      if (!error) return write_next();
                      // The server's last words, which may be a farewell, are still to be read; then reading ends, too.
                      ErrorCode ignored;
                      link_->socket.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
                    });
}

void Connection::read_size() {
  asio::async_read(link_->socket, asio::buffer(size_), [this](const ErrorCode& error, size_t) {
    if (error) return lose(error);
    heard_ = Clock::now();
    const size_t size = decode_size(size_.data());
    if (size > kMaxFrameSize + (link_->opener ? kSealBytes : 0))
      return lose("an answer that is too large", "it sent what makes no sense");
    read_body(size);
  });
}

void Connection::read_body(size_t size) {
  body_.resize(size);
  const auto moved = [this] { heard_ = Clock::now(); };
  asio::async_read(link_->socket, asio::buffer(body_), transfer_frame(0, moved),
                   [this](const ErrorCode& error, size_t) {
                     if (error) return lose(error);
                     if (link_->opener && !link_->opener->open(body_)) {
                       return lose("bytes that were changed on their way", "somebody meddles with its connection");
                     }
                     auto reply = decode_reply(body_);
                     body_ = std::string();
                     if (!reply || !take(std::move(*reply))) {
                       return lose("an answer that makes no sense", "it sent what makes no sense");
                     }
                     read_size();
                   });
}

bool Connection::take(Reply reply) {
  if (reply.id == kPushId) {
    const auto push = decode_push(reply.payload);
    return push && take_push(*push);
  }
  complete(std::move(reply));
  return true;
}

bool Connection::take_push(const Push& push) {
  if (push.kind == Push::Kind::kFarewell) farewell_ = true;
  if (push.kind != Push::Kind::kNotice || parted_) return true;
  const std::lock_guard lock(watch_mutex_);
  for (auto& [id, watch] : watches_) {
    if (watch.scope == push.scope && watch.told.insert(push.rank).second) watch.tell({push.rank, false, push.text});
  }
  return true;
}

void Connection::complete(Reply reply) {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(reply.id);
  if (found == pending_.end()) return;
  found->second->reply = std::move(reply);
  found->second->done = true;
  found->second->answered.notify_one();
}

void Connection::lose(const ErrorCode& error) { lose(error.message(), end_text(error)); }

void Connection::lose(const std::string& text, const std::string& reason) {
  ErrorCode ignored;
  link_->socket.close(ignored);
  beat_timer_.cancel();
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) return;
    lost_ = fmt::format("closed the connection ({})", text);
    outgoing_.clear();
    for (const auto& [id, pending] : pending_) pending->answered.notify_one();
  }
  if (!farewell_ && !parted_) tell_all(reason);
}

void Connection::tell_all(const std::string& reason) {
  const Welcome& server = link_->welcome;
  std::string text = loss_text(server.server_rank, server.server_identity, reason);
  if (server.server_rank < 0) {
    text = fmt::format("the store at {} ({}), through which the ranks watch over each other, is lost: {}", where_,
                       server.server_identity, reason);
  }
  const std::lock_guard lock(watch_mutex_);
  for (const auto& [id, watch] : watches_) watch.tell({server.server_rank, true, text});
}

uint64_t Connection::watch(const std::string& scope, std::function<void(const Loss&)> tell) {
  const std::lock_guard lock(watch_mutex_);
  watches_.emplace(++last_watch_, Watch{scope, std::move(tell), {}});
  if (!std::exchange(beating_, true)) {
    asio::post(link_->io, [this] {
      beaten_ = heard_ = Clock::now();
      keep_beat();
    });
  }
  return last_watch_;
}

void Connection::unwatch(uint64_t watch) {
  const std::lock_guard lock(watch_mutex_);
  watches_.erase(watch);
}

void Connection::keep_beat() {
  beat_timer_.expires_after(std::chrono::nanoseconds(link_->welcome.heartbeat.tick_ns()));
  beat_timer_.async_wait([this](const ErrorCode& stopped) {
    if (!stopped && link_->socket.is_open()) beat();
  });
}

// Shows that this process lives, and looks whether the server's does.
void Connection::beat() {
  const Heartbeat& heartbeat = link_->welcome.heartbeat;
  const auto now = Clock::now();
  ErrorCode error;
  // If this process was itself stopped, the silence may be its own doing.
  const bool late = now - beaten_ > std::chrono::nanoseconds(heartbeat.tick_ns() + heartbeat.interval_ns);
  if (late || (link_->socket.available(error) > 0 && !error)) heard_ = now;
  beaten_ = now;
  if (now - heard_ > std::chrono::nanoseconds(heartbeat.limit_ns)) {
    const std::string reason = silence_text(heartbeat);
    return lose(reason, reason);
  }
  {
    const std::lock_guard lock(mutex_);
    const bool queued =
        std::any_of(outgoing_.begin(), outgoing_.end(), [](const Outgoing& one) { return one.id == kPushId; });
    if (!queued) enqueue({kPushId, false, encode(StoreRequest{kPushId, Operation::kHeartbeat, 0, {}})});
  }
  keep_beat();
}

void Connection::part(const Deadline& deadline) noexcept {
  parted_ = true;
  try {
    {
      const std::lock_guard lock(watch_mutex_);
      if (!beating_) return;  // no rank was ever enrolled
    }
    const Interruption none([] {});
    call({0, Operation::kGoodbye, 0, {}}, deadline, none);
  } catch (const std::exception&) {
    // The store is gone, and so there is nobody to be told.
  }
}

}  // namespace backplane::core
