// SPDX-License-Identifier: Apache-2.0
#include "group.hpp"

#include <random>
#include <sstream>
#include <utility>

#include "address.hpp"
#include "backplane/sdk/peer_failures.hpp"
#include "backplane/sdk/worker.hpp"

namespace backplane::zmq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestLookUpPause(100);

// How long libzmq may send goodbyes and their answers after the sockets are closed.
constexpr std::chrono::milliseconds kGoodbyeLinger(200);

// The store's key for the rank that owns a public key.
std::string owner_key(const std::string& public_key) { return "zmq/key/" + public_key; }

// Rank 0's entry in the store: token, address and host.
std::string entry_of_rank_0(const sdk::Context& context) {
  try {
    return context.host.store_get("zmq/token", context.timeout_ns);
  } catch (const sdk::Failure& e) {
    if (e.status() != BP_TIMEOUT) throw;
    throw sdk::not_joined(0, e.what());
  }
}

// Rank 0 makes the token that identifies this session, and publishes its host: a rank on another host cannot use a
// loopback address.
uint64_t agree_on_token(const sdk::Context& context, const std::string& address) {
  const std::string host = host_identity();
  if (context.rank == 0) {
    std::random_device random;
    const uint64_t token = (static_cast<uint64_t>(random()) << 32) | random();
    context.host.store_set("zmq/token", std::to_string(token).append(" ").append(address).append(" ").append(host));
    return token;
  }
  std::istringstream entry(entry_of_rank_0(context));
  uint64_t token = 0;
  std::string address_of_0;
  std::string host_of_0;
  entry >> token >> address_of_0 >> host_of_0;
  refuse_loopback(context.rank, address, 0, host_of_0, address_of_0);
  return token;
}

class ZmqWork final : public sdk::Work {
 public:
  ZmqWork(ZmqGroup& group, std::unique_ptr<sdk::CompletionWork> work) : group_(group), work_(std::move(work)) {}
  bool wait(int64_t timeout_ns) override { return group_.wait(work_->completion(), timeout_ns); }
  void cancel() noexcept override { group_.cancel(*work_); }
  bool on_end(sdk::Notice notice) override { return work_->on_end(notice); }

 private:
  ZmqGroup& group_;
  const std::unique_ptr<sdk::CompletionWork> work_;
};

}  // namespace

ZmqGroup::ZmqGroup(const sdk::Context& context)
    : host_(context.host),
      settings_(read_settings(context)),
      sockets_(settings_, context.host.secure(), static_cast<size_t>(context.world_size - 1)) {
  // The key first: a rank that reads the endpoint may connect at once, and its peer then looks up the key.
  if (sockets_.secure()) host_.store_set(owner_key(sockets_.public_key()), std::to_string(context.rank));
  host_.store_set(address_key(context.rank), format_address(sockets_));
  const uint64_t token = agree_on_token(context, settings_.address);
  token_ = std::to_string(token);
  messages_ = std::make_unique<Messages>(context.rank, context.world_size, settings_, host_, token, sockets_, wake_);
  driver_ = std::make_unique<Driver>(
      wake_, sockets_.descriptors(), settings_.poll, [this](const sdk::Completion* wanted) { return progress(wanted); },
      [this](Driver::Lock& lock) { return upkeep(lock); });
  messages_->sender().on_unresolved([this] {
    look_up_pause_ = {};
    next_look_up_ = {};
    driver_->request_upkeep();
  });
  thread_ = sdk::start_thread([this] { driver_->run(); });
}

ZmqGroup::~ZmqGroup() {
  driver_->stop();
  thread_.join();
  Driver::Lock lock(driver_->mutex());
  leaving_ = true;
  const TimePoint deadline = Clock::now() + settings_.linger;
  if (!messages_->aborted()) messages_->sender().begin_goodbye();
  TimePoint due = progress(nullptr);
  while (!messages_->aborted() && !messages_->sender().goodbye_confirmed() && Clock::now() < deadline) {
    due = driver_->step(lock, std::min(due, deadline));
  }
  if (!messages_->aborted()) messages_->end_goodbye();
  if (messages_->aborted()) close_after_abort();
  // Only answers to goodbyes are still in transit.
  sockets_.close({}, std::min(settings_.linger, kGoodbyeLinger));
  sockets_.shut_down();
}

std::unique_ptr<sdk::Work> ZmqGroup::submit(const bp_op& op) {
  Driver::Lock lock(driver_->mutex());
  std::unique_ptr<sdk::CompletionWork> work = messages_->submit(op);
  send_ready();
  if (work && !work->completion().done() && (op.flags & BP_OP_SYNC) != 0) finish_in_line(lock, *work, op);
  if (!work || work->wait(0)) return nullptr;
  return std::make_unique<ZmqWork>(*this, std::move(work));
}

void ZmqGroup::send_ready() noexcept {
  try {
    messages_->sender().send_ready();
  } catch (const std::exception& e) {
    fail(e);
  }
  if (messages_->sender().has_backlog() || messages_->aborted()) {
    catch_up();
  } else if (driver_->driving()) {
    messages_->receive_replies();
    driver_->changed();
  }
}

const void* ZmqGroup::extension(std::string_view id) {
  if (id == BP_EXT_NOTIFY) return sdk::notify_table();
  return id == BP_EXT_PROBE ? sdk::ProbeTable::table() : nullptr;
}

bp_message* ZmqGroup::probe(int32_t peer, uint64_t tag, bp_result& result) {
  const Driver::Lock lock(driver_->mutex());
  catch_up();
  return messages_->probe(peer, tag, result);
}

void ZmqGroup::drop(bp_message* message) noexcept {
  const Driver::Lock lock(driver_->mutex());
  messages_->drop(message);
  send_ready();
}

TimePoint ZmqGroup::progress(const sdk::Completion* wanted) noexcept {
  if (messages_->aborted()) close_after_abort();
  try {
    const TimePoint due = messages_->progress(wanted);
    answer_known();
    return due;
  } catch (const std::exception& e) {
    fail(e);
    return TimePoint::min();
  }
}

void ZmqGroup::catch_up() {
  try {
    driver_->changed(messages_->progress());
  } catch (const std::exception& e) {
    fail(e);
    driver_->changed(TimePoint::min());
  }
}

// No operation can progress any more. Reports it to the core, in case no thread waits for an operation.
void ZmqGroup::fail(const std::exception& e) {
  const sdk::Failure why(BP_INTERNAL, std::string("zmq: ") + e.what());
  messages_->abort(why);
  host_.report_failure(why);
}

void ZmqGroup::answer_known() {
  if (closed_) return;
  while (const auto& key = sockets_.zap().pending()) {
    if (!sockets_.secure()) {
      sockets_.zap().answer(*key == token_ ? 0 : -1);
      continue;
    }
    const auto known = keys_.find(*key);
    if (known == keys_.end() && !leaving_) return driver_->request_upkeep();
    sockets_.zap().answer(known == keys_.end() ? -1 : known->second);
  }
}

// One look-up per connection. A connecting rank has stored its key before.
void ZmqGroup::answer_others(Driver::Lock& lock) {
  if (!sockets_.secure()) return;
  while (!closed_ && !messages_->aborted() && sockets_.zap().pending()) {
    const std::string key = *sockets_.zap().pending();
    int32_t rank = -1;
    lock.unlock();
    try {
      rank = std::stoi(host_.store_get(owner_key(key), 0));
    } catch (const std::exception&) {
      // No rank's key.
    }
    lock.lock();
    if (closed_ || messages_->aborted()) return;
    if (rank >= 0) keys_[key] = rank;
    if (sockets_.zap().pending() == key) sockets_.zap().answer(rank);
  }
}

// Only the driver may close the descriptors that it sleeps on.
void ZmqGroup::close_after_abort() {
  if (closed_) return;
  closed_ = true;
  driver_->forget_descriptors();
  messages_->end_goodbye();
  sockets_.close({}, kGoodbyeLinger);
}

// Looks up the endpoints of peers that are needed. Each look-up returns at once, so that it does not delay the others.
TimePoint ZmqGroup::upkeep(Driver::Lock& lock) {
  answer_others(lock);
  if (messages_->aborted()) return TimePoint::max();
  std::vector<int32_t> wanted = messages_->sender().unresolved();
  if (wanted.empty()) return TimePoint::max();
  if (Clock::now() < next_look_up_) return next_look_up_;
  look_up_pause_ = std::min(2 * look_up_pause_ + std::chrono::milliseconds(1), kLongestLookUpPause);
  next_look_up_ = Clock::now() + look_up_pause_;
  for (const int32_t rank : wanted) {
    std::string line;
    lock.unlock();
    try {
      line = host_.store_get(address_key(rank), 0);
    } catch (const std::exception&) {
      // Not there yet. The core detects a lost store.
    }
    lock.lock();
    if (line.empty()) continue;
    const Address found = parse_address(line, settings_.ipc);
    if (found.public_key.size() == kCurveKeySize) keys_[found.public_key] = rank;
    messages_->resolve(rank, found.endpoint, found.public_key);
  }
  catch_up();
  return messages_->sender().unresolved().empty() ? TimePoint::max() : next_look_up_;
}

// Keeps the deadline of a SYNC operation. Returns when it is done; throws BP_TIMEOUT if it was cancelled.
void ZmqGroup::finish_in_line(Driver::Lock& lock, sdk::CompletionWork& work, const bp_op& op) {
  const sdk::Completion& operation = work.completion();
  driver_->wait(lock, operation, deadline_after(op.timeout_ns));
  if (!operation.done()) catch_up();  // libzmq may have released its buffer just now
  if (operation.done()) return;
  const bool sends = op.kind == BP_SEND;
  const sdk::Failure timeout = sdk::timed_out(op);
  work.cancel();
  catch_up();
  if (!operation.done() && sends) messages_->close_connection(op.peer, timeout.what());  // to get the buffer back
  catch_up();
  driver_->wait(lock, operation, TimePoint::max());
  try {
    work.wait(0);
  } catch (const sdk::Failure&) {
    throw sdk::Failure(timeout);
  }
}

bool ZmqGroup::wait(sdk::Completion& operation, int64_t timeout_ns) {
  Driver::Lock lock(driver_->mutex());
  if (!operation.done() && timeout_ns == 0) catch_up();
  driver_->wait(lock, operation, deadline_after(timeout_ns));
  return operation.wait(0);
}

void ZmqGroup::cancel(sdk::Work& work) noexcept {
  const Driver::Lock lock(driver_->mutex());
  work.cancel();
  catch_up();
}

void ZmqGroup::abort(const sdk::Failure& why) noexcept {
  const Driver::Lock lock(driver_->mutex());
  messages_->abort(why);
  driver_->changed(TimePoint::min());  // only the driver closes the sockets, and so gets borrowed buffers back
  driver_->request_upkeep();
}

}  // namespace backplane::zmq
