// SPDX-License-Identifier: Apache-2.0
#include "rpc.hpp"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

#include "address.hpp"
#include "backplane/sdk/worker.hpp"
#include "errors.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr int64_t kStoreTimeoutNs = 10'000'000'000;  // for an endpoint that is known to exist
constexpr std::chrono::seconds kRetry(1);
constexpr std::chrono::seconds kLimiterInterval(1);

// Its buffers must be copied to the host before it can be written.
bool is_on_device(const std::shared_ptr<Outgoing>& message) { return message->has_devices && !message->staged; }

}  // namespace

Agent::Agent(const sdk::Context& context)
    : core_(context.host),
      host_(context.host),
      rank_(context.rank),
      memory_(sdk::received_memory(context.options)),
      transports_(make_transports(context)),
      peers_(static_cast<size_t>(context.world_size)) {
  endpoint_.host = host_identity();
  endpoint_.devices = {context.name, 0, parse_device_maps(context.options.text("device_maps"))};
  endpoint_.devices.count = count_cuda_devices(&endpoint_.devices.absence_reason);
  if (getrandom(endpoint_.token.data(), endpoint_.token.size(), 0) != static_cast<ssize_t>(endpoint_.token.size())) {
    throw sdk::Failure(BP_RESOURCE, "getrandom failed");
  }
  try {
    listen_express();
    const auto listener = listen();
    std::vector<WorkerDevices> workers;
    for (int32_t rank = 0; rank < context.world_size; ++rank) {
      const Endpoint endpoint = parse_endpoint(host_.store_get(endpoint_key(rank), context.timeout_ns), rank);
      if (rank != rank_) {
        require_same_version(endpoint_, endpoint, rank);
        select_url(endpoint_, endpoint, rank);
      }
      peers_[static_cast<size_t>(rank)].token = endpoint.token;
      workers.push_back(rank == rank_ ? endpoint_.devices : endpoint.devices);
    }
    check_device_maps(workers);
    staging_.emplace(workers, rank_, memory_, is_stopped_);
    accept(listener);  // not before, since messages may be for devices
    if (express_listener_) accept_express(express_listener_);
    thread_ = sdk::start_thread([this] { run(); });
  } catch (...) {
    abort(sdk::Failure(BP_CANCELLED, "the agent could not start"));
    throw;
  }
}

Agent::~Agent() { abort(sdk::Failure(BP_CANCELLED, "this worker has left")); }

void Agent::publish_endpoint(const ::tensorpipe::Listener& listener) {
  for (const std::string& transport : transports_.names) {
    (transport == "uv" ? endpoint_.uv : endpoint_.shm) = listener.url(transport);
  }
  host_.store_set(endpoint_key(rank_), format_endpoint(endpoint_));
}

void Agent::send(int32_t to, sdk::RpcMessage message, int64_t) {
  const auto outgoing = std::make_shared<Outgoing>(std::move(message));
  outgoing->has_devices = staging_->needs_staging(outgoing->message, to);
  Pipe pipe;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) throw sdk::Failure(BP_CANCELLED, "this worker has left");
    Peer& peer = peers_[static_cast<size_t>(to)];
    pipe = peer.pipe;
    if (!pipe || peer.is_scheduled || outgoing->has_devices) {
      peer.backlog.push_back(outgoing);
      if (std::exchange(peer.is_scheduled, true)) return;
      work_queue_.push_back(to);
      changed_.notify_all();
      return;
    }
  }
  write(to, pipe, outgoing);
}

// Opens one pipe per worker at a time, and only if it is needed: TensorPipe's listener fails for good if a connection
// ends while it is being accepted.
void Agent::connect(int32_t to) {
  Pipe pipe;
  std::optional<Endpoint> there;
  std::optional<sdk::Failure> failure;
  try {
    const Endpoint endpoint =
        parse_endpoint(host_.store_get(endpoint_key(to), kStoreTimeoutNs), to);  // the worker may have a new URL by now
    const std::string& url = select_url(endpoint_, endpoint, to);
    require_reachable(url, to);
    pipe = transports_.context->connect(url, ::tensorpipe::PipeOptions().remoteName(std::to_string(to)));
    there.emplace(endpoint);
  } catch (const sdk::Failure& e) {
    const bool ours = e.status() == BP_RESOURCE || e.status() == BP_INVALID;
    failure.emplace(ours ? e.status() : BP_PEER_LOST, std::string("it is unreachable: ") + e.what(), to);
  } catch (const std::exception& e) {
    failure.emplace(BP_INTERNAL, std::string("TensorPipe cannot open a pipe to it: ") + e.what(), to);
  }
  std::deque<OutgoingPtr> backlog;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    peer.pipe = pipe;
    if (pipe) peer.sent = {peer.sent.express + 1, 0};
    peer.is_scheduled = !failure;
    if (failure) {
      backlog.swap(peer.backlog);
    } else {
      work_queue_.push_back(to);
    }
  }
  if (there) {
    watch(to, pipe);
    return connect_express(to, *there);
  }
  for (const OutgoingPtr& message : backlog) core_.failed(to, message->message.id(), *failure);
}

// Writes the messages that waited for the pipe or for a copy from a device, before those sent meanwhile. Once the
// backlog is empty, senders write by themselves.
void Agent::write_backlog(int32_t to) {
  constexpr ptrdiff_t kMost = 256;  // per batch
  Pipe pipe;
  std::vector<OutgoingPtr> batch;
  {
    std::unique_lock lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    pipe = peer.pipe;
    if (!pipe) return work_queue_.push_back(to);  // the pipe broke
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
    if (peer.is_scheduled) work_queue_.push_back(to);
  }
  for (const OutgoingPtr& message : batch) {
    if (is_stopped_) return;
    write(to, pipe, message);
  }
}

// Later messages to that worker wait behind the copy. Messages to others do not.
void Agent::stage(int32_t to, const OutgoingPtr& message) {
  staging_->copy_to_host_async(message, to, [this, to, message](const sdk::Failure* failure) {
    if (is_stopped_) return;
    if (failure != nullptr) core_.failed(to, message->message.id(), *failure);
    const std::lock_guard lock(mutex_);
    if (failure == nullptr) peers_[static_cast<size_t>(to)].backlog.push_front(message);
    work_queue_.push_back(to);
    changed_.notify_all();
  });
}

void Agent::write(int32_t to, const Pipe& pipe, const OutgoingPtr& message) {
  const uint64_t id = message->message.id();
  const Token& token = peers_[static_cast<size_t>(to)].token;
  Express express;
  ExpressPosition express_position;
  {
    const bool may_overtake = id != 0 && is_small(message->message);
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (may_overtake && peer.is_express_open && peer.pipe == pipe) {
      express = peer.express;
      ++peer.sent.messages;
    }
    if (peer.pipe == pipe) express_position = peer.sent;
  }
  if (express) return write_express(to, express, message, express_position);
  ::tensorpipe::Message out;
  try {
    out = to_tensorpipe(message->message, token, rank_, message->staged.get(), express_position);
  } catch (const sdk::Failure& failure) {
    return core_.failed(to, id, failure);
  }
  if (id == 0) {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.pipe == pipe)
      peer.unconfirmed.push_back(message);  // otherwise the pipe was dropped and brings no receipts
  }
  pipe->write(std::move(out), [this, to, message, weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& error) {
    if (!error) return;
    if (const Pipe broken = weak.lock()) forget(to, broken);
    if (!is_stopped_) core_.failed(to, message->message.id(), failure_of(error, to));
  });
}

// Reads receipts and the end of a pipe that this worker opened. A completed write means only that the kernel has the
// data: if the pipe breaks, all calls without a reply may be lost.
void Agent::watch(int32_t to, const Pipe& pipe) {
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

void Agent::take_receipt(int32_t to) {
  OutgoingPtr read;  // released without the lock
  const std::lock_guard lock(mutex_);
  std::deque<OutgoingPtr>& unconfirmed = peers_[static_cast<size_t>(to)].unconfirmed;
  if (unconfirmed.empty()) return;
  read.swap(unconfirmed.front());
  unconfirmed.pop_front();
}

// The next message opens a new pipe. Returns false if the pipe was already dropped.
bool Agent::forget(int32_t to, const Pipe& pipe) {
  std::deque<OutgoingPtr> unconfirmed;
  Express express;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
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

// Connecting workers wait until they are accepted.
std::shared_ptr<::tensorpipe::Listener> Agent::listen() {
  std::vector<std::string> urls;
  for (const auto& url : transports_.urls) urls.push_back(url());
  std::shared_ptr<::tensorpipe::Listener> listener = transports_.context->listen(urls);
  std::shared_ptr<::tensorpipe::Listener> last;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return listener;
    last = std::exchange(listener_, listener);
  }
  publish_endpoint(*listener);
  return listener;
}

bool Agent::listen_again() {
  try {
    accept(listen());
    return true;
  } catch (const std::exception& e) {
    if (!is_stopped_)
      host_.log(BP_LOG_WARN, std::string("cannot listen for new connections, retrying every second: ") + e.what());
    return false;
  }
}

// A listener that is closed closes the connections that it has not assigned to a pipe, and accept() replaces it.
void Agent::close_idle_connections() {
  if (!limiter_.is_exceeded(endpoint_.uv)) return;
  host_.log(closed_, BP_LOG_WARN,
            "clients that send nothing have connected to " + endpoint_.uv +
                "; closing their connections and listening on another port");
  std::shared_ptr<::tensorpipe::Listener> listener;
  {
    const std::lock_guard lock(mutex_);
    listener = listener_;
  }
  listener->close();
}

// The agent's thread. A listener created on one of TensorPipe's threads has no address yet, so pipes and listeners are
// created here. Each worker gets one batch at a time, so that many messages to one do not delay the others.
void Agent::run() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point listens_at = Clock::now();
  // Workers that use shm alone have no port.
  Clock::time_point limits_at = endpoint_.uv.empty() ? Clock::time_point::max() : Clock::now() + kLimiterInterval;
  std::unique_lock lock(mutex_);
  while (!is_stopped_) {
    if (listener_failed_ && Clock::now() >= listens_at) {
      listener_failed_ = false;
      lock.unlock();
      const bool listens = listen_again();
      lock.lock();
      if (listens) continue;
      listener_failed_ = true;
      listens_at = Clock::now() + kRetry;
    } else if (Clock::now() >= limits_at) {
      limits_at = Clock::now() + kLimiterInterval;
      lock.unlock();
      close_idle_connections();
      lock.lock();
    } else if (!work_queue_.empty()) {
      const int32_t to = work_queue_.front();
      work_queue_.pop_front();
      const bool is_connected = peers_[static_cast<size_t>(to)].pipe != nullptr;
      lock.unlock();
      if (is_connected) {
        write_backlog(to);
      } else {
        connect(to);
      }
      lock.lock();
    } else {
      const Clock::time_point due = listener_failed_ ? std::min(listens_at, limits_at) : limits_at;
      if (due == Clock::time_point::max()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, due);
      }
    }
  }
}

void Agent::accept(const std::shared_ptr<::tensorpipe::Listener>& listener) {
  // Weak, because a listener keeps its callbacks.
  listener->accept([this, weak = std::weak_ptr(listener)](const ::tensorpipe::Error& error, const Pipe& pipe) {
    const auto same = weak.lock();
    if (!same || is_stopped_) return;
    if (error) {  // a peer disconnected during the handshake, and the listener accepts no more connections
      host_.log(BP_LOG_INFO, "replacing the listener: " + error.what());
      same->close();
      const std::lock_guard lock(mutex_);
      listener_failed_ = true;
      changed_.notify_all();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      if (!is_stopped_) incoming_.insert(pipe);
    }
    accept(same);
    read(pipe, std::make_shared<IncomingPipe>());
  });
}

void Agent::abort(const sdk::Failure&) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_.exchange(true)) return;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (staging_) staging_->stop();
  transports_.context->close();
  transports_.context->join();  // all callbacks have run
  memory_->close();
  // Released without the lock: messages may run destructors of the program.
  std::vector<OutgoingPtr> unsent;
  std::vector<DeferredGoodbye> deferred;
  std::set<Pipe> pipes;
  std::set<Express> connections;
  std::shared_ptr<::tensorpipe::Listener> listener;
  std::shared_ptr<::tensorpipe::transport::Listener> express_listener;
  const std::lock_guard lock(mutex_);
  for (Peer& peer : peers_) {
    std::move(peer.backlog.begin(), peer.backlog.end(), std::back_inserter(unsent));
    peer.backlog.clear();
    std::move(peer.unconfirmed.begin(), peer.unconfirmed.end(), std::back_inserter(unsent));
    peer.unconfirmed.clear();
    std::move(peer.deferred.begin(), peer.deferred.end(), std::back_inserter(deferred));
    peer.deferred.clear();
    if (peer.pipe) pipes.insert(std::move(peer.pipe));
    if (peer.express) connections.insert(std::move(peer.express));
  }
  pipes.merge(incoming_);
  connections.merge(incoming_express_);
  listener.swap(listener_);
  express_listener.swap(express_listener_);
}

}  // namespace backplane::tensorpipe
