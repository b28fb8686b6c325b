// SPDX-License-Identifier: Apache-2.0
#include "sender.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "address.hpp"
#include "errors.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr int64_t kStoreTimeoutNs = 10'000'000'000;  // for an endpoint that is known to exist
constexpr std::chrono::seconds kAnswerTime(10);      // for the first message of a pipe to be written

// Its buffers must be copied to the host before it can be written.
bool is_on_device(const std::shared_ptr<Outgoing>& message) { return message->has_devices && !message->staged; }

}  // namespace

Sender::Sender(const sdk::Context& context, std::vector<Token> tokens, const Endpoint& own,
               const Transports& transports, Staging& staging, TimedExecutor& executor,
               const std::atomic<bool>& is_stopped)
    : core_(context.host),
      host_(context.host),
      rank_(context.rank),
      tokens_(std::move(tokens)),
      own_(own),
      transports_(transports),
      staging_(staging),
      executor_(executor),
      is_stopped_(is_stopped),
      peers_(tokens_.size()) {}

void Sender::send(int32_t to, sdk::RpcMessage message) {
  const auto outgoing = std::make_shared<Outgoing>(std::move(message));
  outgoing->has_devices = staging_.needs_staging(outgoing->message, to);
  Pipe pipe;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) throw sdk::Failure(BP_CANCELLED, "this worker has left");
    Peer& peer = at(to);
    pipe = peer.pipe;
    if (!pipe || peer.is_scheduled || outgoing->has_devices) {
      peer.backlog.push_back(outgoing);
      if (std::exchange(peer.is_scheduled, true)) return;
      return schedule(to);
    }
  }
  write(to, pipe, outgoing);
}

void Sender::schedule(int32_t to) {
  executor_.add([this, to] { write_backlog(to); });
}

// Opens one pipe per worker at a time, and only if it is needed: TensorPipe's listener fails for good if a connection
// ends while it is being accepted.
void Sender::connect(int32_t to) {
  Pipe pipe;
  std::string url;
  std::optional<Endpoint> endpoint;
  std::optional<sdk::Failure> failure;
  try {
    Endpoint there = parse_endpoint(host_.store_get(endpoint_key(to), kStoreTimeoutNs), to);  // it may have a new URL
    url = select_url(own_, there, to);
    require_reachable(url, to);
    pipe = transports_.context->connect(url, ::tensorpipe::PipeOptions().remoteName(std::to_string(to)));
    endpoint.emplace(std::move(there));
  } catch (const sdk::Failure& e) {
    const bool ours = e.status() == BP_RESOURCE || e.status() == BP_INVALID;
    failure.emplace(ours ? e.status() : BP_PEER_LOST, std::string("it is unreachable: ") + e.what(), to);
  } catch (const std::exception& e) {
    failure.emplace(BP_INTERNAL, std::string("TensorPipe cannot open a pipe to it: ") + e.what(), to);
  }
  std::deque<OutgoingPtr> backlog;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = at(to);
    peer.pipe = pipe;
    peer.is_answered = false;
    if (pipe) peer.sent = {peer.sent.express + 1, 0};
    peer.is_scheduled = !failure;
    if (failure) {
      backlog.swap(peer.backlog);
    } else {
      schedule(to);
    }
  }
  if (endpoint) {
    watch(to, pipe);
    expect_answer(to, pipe, url);
    return connect_express(to, *endpoint);
  }
  for (const OutgoingPtr& message : backlog) core_.failed(to, message->message.id(), *failure);
}

// Opens the pipe if there is none. Writes the messages that waited for it or for a copy from a device, before those
// sent meanwhile: one batch at a time, so that many messages to one worker do not delay others. Once the backlog is
// empty, senders write by themselves.
void Sender::write_backlog(int32_t to) {
  constexpr ptrdiff_t kMost = 256;  // per batch
  Pipe pipe;
  std::vector<OutgoingPtr> batch;
  {
    std::unique_lock lock(mutex_);
    Peer& peer = at(to);
    pipe = peer.pipe;
    if (!pipe) {
      lock.unlock();
      return connect(to);
    }
    const auto first = peer.backlog.begin();
    const auto last = std::find_if(first, first + std::min(kMost, peer.backlog.end() - first), is_on_device);
    if (first == last && first != peer.backlog.end()) {
      const OutgoingPtr next = std::move(*first);
      peer.backlog.pop_front();
      lock.unlock();
      return stage(to, next);
    }
    batch.assign(std::make_move_iterator(first), std::make_move_iterator(last));
    peer.backlog.erase(first, last);
    peer.is_scheduled = !batch.empty();
    if (peer.is_scheduled) schedule(to);
  }
  for (const OutgoingPtr& message : batch) {
    if (is_stopped_) return;
    write(to, pipe, message);
  }
}

// Later messages to that worker wait behind the copy. Messages to others do not.
void Sender::stage(int32_t to, const OutgoingPtr& message) {
  staging_.copy_to_host_async(message, to, [this, to, message](const sdk::Failure* failure) {
    if (is_stopped_) return;
    if (failure != nullptr) core_.failed(to, message->message.id(), *failure);
    const std::lock_guard lock(mutex_);
    if (failure == nullptr) at(to).backlog.push_front(message);
    schedule(to);
  });
}

void Sender::write(int32_t to, const Pipe& pipe, const OutgoingPtr& message) {
  const uint64_t id = message->message.id();
  Express express;
  ExpressPosition position;
  bool is_first = false;
  {
    const bool may_overtake = id != 0 && is_small(message->message);
    const std::lock_guard lock(mutex_);
    Peer& peer = at(to);
    if (may_overtake && peer.is_express_open && peer.pipe == pipe) {
      express = peer.express;
      ++peer.sent.messages;
    }
    if (peer.pipe == pipe) position = peer.sent;
    is_first = peer.pipe == pipe && !peer.is_answered;
  }
  if (express) return write_express(to, express, message, position);
  ::tensorpipe::Message out;
  try {
    out = to_tensorpipe(message->message, token_of(to), rank_, message->staged.get(), position);
  } catch (const sdk::Failure& failure) {
    return core_.failed(to, id, failure);
  }
  if (id == 0) {
    const std::lock_guard lock(mutex_);
    Peer& peer = at(to);
    if (peer.pipe == pipe)
      peer.unconfirmed.push_back(message);  // otherwise the pipe was dropped and brings no receipts
  }
  pipe->write(std::move(out),
              [this, to, message, is_first, weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& error) {
                const Pipe same = error || is_first ? weak.lock() : nullptr;
                if (!error) {
                  if (!same) return;
                  const std::lock_guard lock(mutex_);
                  if (at(to).pipe == same) at(to).is_answered = true;
                  return;
                }
                if (same) forget(to, same);
                if (!is_stopped_) core_.failed(to, message->message.id(), failure_of(error, to));
              });
}

// A listener of TensorPipe that fails does not close the connections that it has not read yet, while another pipe that
// it accepted is in use. A pipe over such a connection neither opens nor breaks.
void Sender::expect_answer(int32_t to, const Pipe& pipe, const std::string& url) {
  const auto check = [this, to, url, weak = std::weak_ptr(pipe)] {
    if (const Pipe same = weak.lock()) check_answer(to, same, url);
  };
  executor_.add(check, TimedExecutor::Clock::now() + kAnswerTime);
}

// Drops a pipe that has not opened if its worker listens elsewhere by now.
void Sender::check_answer(int32_t to, const Pipe& pipe, const std::string& url) {
  const auto is_unanswered = [this, to, &pipe] {
    const std::lock_guard lock(mutex_);
    return !is_stopped_ && at(to).pipe == pipe && !at(to).is_answered;
  };
  if (!is_unanswered()) return;
  try {
    const Endpoint there = parse_endpoint(host_.store_get(endpoint_key(to), kStoreTimeoutNs), to);
    if (select_url(own_, there, to) == url) return expect_answer(to, pipe, url);
  } catch (const std::exception&) {
    return expect_answer(to, pipe, url);  // the store is busy or lost
  }
  if (!is_unanswered() || !forget(to, pipe)) return;
  const std::string why = "it did not accept the connection to " + url + ", where it no longer listens";
  host_.log(BP_LOG_INFO, "closing the pipe to rank " + std::to_string(to) + ": " + why);
  core_.lost(to, sdk::Failure(BP_PEER_LOST, why, to));
}

// Reads receipts and the end of a pipe that this worker opened. A completed write means only that the kernel has the
// data: if the pipe breaks, all calls without a reply may be lost.
void Sender::watch(int32_t to, const Pipe& pipe) {
  pipe->readDescriptor([this, to, weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& error,
                                                              const ::tensorpipe::Descriptor& descriptor) {
    const Pipe same = weak.lock();
    if (!same) return;
    if (!error && descriptor.metadata.empty() && descriptor.payloads.empty() && descriptor.tensors.empty()) {
      take_receipt(to);
      same->read({}, [](const ::tensorpipe::Error&) {});
      return watch(to, same);
    }
    if (!forget(to, same) || is_stopped_) return;
    core_.lost(to,
               error ? failure_of(error, to) : sdk::Failure(BP_INTERNAL, "it sent something other than a receipt", to));
  });
}

void Sender::take_receipt(int32_t to) {
  OutgoingPtr read;  // released without the lock
  const std::lock_guard lock(mutex_);
  std::deque<OutgoingPtr>& unconfirmed = at(to).unconfirmed;
  if (unconfirmed.empty()) return;
  read.swap(unconfirmed.front());
  unconfirmed.pop_front();
}

// The next message opens a new pipe. Returns false if the pipe was already dropped.
bool Sender::forget(int32_t to, const Pipe& pipe) {
  std::deque<OutgoingPtr> unconfirmed;
  Express express;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = at(to);
    if (peer.pipe != pipe) return false;
    peer.pipe = nullptr;  // the caller holds a reference
    express.swap(peer.express);
    peer.is_express_open = false;
    unconfirmed.swap(peer.unconfirmed);
  }
  pipe->close();
  if (express) express->close();
  return true;
}

void Sender::connect_express(int32_t to, const Endpoint& endpoint) {
  if (!transports_.express || endpoint.express.empty() || endpoint.host != own_.host || !can_open_express()) return;
  {
    const std::lock_guard lock(mutex_);
    if (at(to).express_disabled) return;
  }
  const Express express = transports_.express->connect(endpoint.express);
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = at(to);
    if (peer.pipe) peer.express = express;  // otherwise the pipe has already broken
  }
  watch_express(to, express);
}

// Reads the greeting and the end of the connection. Nothing else is sent back.
void Sender::watch_express(int32_t to, const Express& express) {
  express->read([this, to, weak = std::weak_ptr(express)](const ::tensorpipe::Error& error, const void*, size_t) {
    const Express same = weak.lock();
    if (!same || is_stopped_) return;
    if (!error && open_express(to, same)) return watch_express(to, same);
    if (!forget_express(to, same)) return;
    core_.lost(to, error ? failure_of(error, to)
                         : sdk::Failure(BP_INTERNAL, "it sent unexpected data on the express connection", to));
  });
}

// Returns false if it is already open or was dropped.
bool Sender::open_express(int32_t to, const Express& express) {
  const std::lock_guard lock(mutex_);
  Peer& peer = at(to);
  if (peer.express != express || peer.is_express_open) return false;
  return peer.is_express_open = true;
}

void Sender::write_express(int32_t to, const Express& express, const OutgoingPtr& message,
                           const ExpressPosition& position) {
  const uint64_t id = message->message.id();
  try {
    const auto bytes = std::make_shared<const std::string>(
        to_tensorpipe(message->message, token_of(to), rank_, nullptr, position).metadata);
    // A failure is also reported to the reader, which drops the connection.
    express->write(bytes->data(), bytes->size(), [this, to, id, bytes](const ::tensorpipe::Error& error) {
      if (error && !is_stopped_) core_.failed(to, id, failure_of(error, to));
    });
  } catch (const std::exception& e) {  // out of memory; the receiver would wait for this message
    const sdk::Failure failure(BP_RESOURCE, std::string("it could not be sent: ") + e.what(), to);
    if (forget_express(to, express)) core_.lost(to, failure);
    core_.failed(to, id, failure);
  }
}

// Drops an express connection, and its pipe if the express connection was open. An express connection that breaks
// without its pipe is not opened again. Returns false if nothing was lost, or if it was already dropped.
bool Sender::forget_express(int32_t to, const Express& express) {
  Pipe pipe;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = at(to);
    if (peer.express != express) return false;
    peer.express_disabled = true;
    if (peer.is_express_open) pipe = peer.pipe;
    if (!pipe) peer.express = nullptr;  // the caller holds a reference
  }
  if (pipe) return forget(to, pipe);
  express->close();
  return false;
}

void Sender::clear() {
  std::vector<Peer> last(peers_.size());  // released without the lock: messages may run destructors of the program
  const std::lock_guard lock(mutex_);
  last.swap(peers_);
}

}  // namespace backplane::tensorpipe
