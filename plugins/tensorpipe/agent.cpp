// SPDX-License-Identifier: Apache-2.0
#include "agent.hpp"

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
#include "fault.hpp"

namespace backplane::tensorpipe {
namespace {

constexpr int64_t kStoreTimeoutNs = 10'000'000'000;  // for a card that is known to be there
constexpr std::chrono::seconds kRetry(1);

// Its buffers are to be copied from there before it can be written.
bool is_on_device(const std::shared_ptr<Outgoing>& message) { return message->has_devices && !message->staged; }

}  // namespace

Agent::Agent(const sdk::Context& context)
    : core_(context.host),
      host_(context.host),
      rank_(context.rank),
      memory_(sdk::received_memory(context.options)),
      endpoint_(make_endpoint(context)),
      peers_(static_cast<size_t>(context.world_size)) {
  card_.host = host_identity();
  card_.devices = {context.name, 0, parse_device_maps(context.options.text("device_maps"))};
  card_.devices.count = count_cuda_devices(&card_.devices.why_none);
  if (getrandom(card_.token.data(), card_.token.size(), 0) != static_cast<ssize_t>(card_.token.size())) {
    throw sdk::Failure(BP_RESOURCE, "the system gives no random bytes");
  }
  try {
    offer_express();
    const auto listener = listen();
    std::vector<WorkerDevices> workers;
    for (int32_t rank = 0; rank < context.world_size; ++rank) {
      const Card card = parse_card(host_.store_get(card_key(rank), context.timeout_ns), rank);
      if (rank != rank_) {
        require_same_wire(card_, card, rank);
        way_to(card_, card, rank);
      }
      peers_[static_cast<size_t>(rank)].token = card.token;
      workers.push_back(rank == rank_ ? card_.devices : card.devices);
    }
    check_device_maps(workers);
    staging_.emplace(workers, rank_, memory_, over_);
    accept(listener);  // what comes before waits: it may be for devices
    if (express_listener_) accept_express(express_listener_);
    thread_ = sdk::start_thread([this] { tend(); });
  } catch (...) {
    abort(sdk::Failure(BP_CANCELLED, "the agent could not start"));
    throw;
  }
}

Agent::~Agent() { abort(sdk::Failure(BP_CANCELLED, "this worker has left")); }

void Agent::tell(const ::tensorpipe::Listener& listener) {
  for (const std::string& transport : endpoint_.transports) {
    (transport == "uv" ? card_.uv : card_.shm) = listener.url(transport);
  }
  host_.store_set(card_key(rank_), format_card(card_));
}

void Agent::send(int32_t to, sdk::RpcMessage message, int64_t) {
  const auto kept = std::make_shared<Outgoing>(std::move(message));
  kept->has_devices = staging_->concerns(kept->message, to);
  Pipe pipe;
  {
    const std::lock_guard lock(mutex_);
    if (over_) throw sdk::Failure(BP_CANCELLED, "this worker has left");
    Peer& peer = peers_[static_cast<size_t>(to)];
    pipe = peer.pipe;
    if (!pipe || peer.wanted || kept->has_devices) {
      peer.backlog.push_back(kept);
      if (std::exchange(peer.wanted, true)) return;
      wanted_.push_back(to);
      changed_.notify_all();
      return;
    }
  }
  write(to, pipe, kept);
}

// One at a time to each, so that none is made in vain: TensorPipe's listener fails for good when one goes away while it
// is being accepted.
void Agent::connect(int32_t to) {
  Pipe pipe;
  std::optional<Card> there;
  std::optional<sdk::Failure> failure;
  try {
    const Card card = parse_card(host_.store_get(card_key(to), kStoreTimeoutNs), to);  // it may listen elsewhere by now
    const std::string& url = way_to(card_, card, to);
    require_way(url, to);
    pipe = endpoint_.context->connect(url, ::tensorpipe::PipeOptions().remoteName(std::to_string(to)));
    there.emplace(card);
  } catch (const sdk::Failure& e) {
    const bool ours = e.status() == BP_RESOURCE || e.status() == BP_INVALID;
    failure.emplace(ours ? e.status() : BP_PEER_LOST, std::string("it cannot be reached: ") + e.what(), to);
  } catch (const std::exception& e) {
    failure.emplace(BP_INTERNAL, std::string("TensorPipe makes no pipe to it: ") + e.what(), to);
  }
  std::deque<Kept> backlog;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    peer.pipe = pipe;
    if (pipe) peer.sent = {peer.sent.express + 1, 0};
    peer.wanted = !failure;
    if (failure) {
      backlog.swap(peer.backlog);
    } else {
      wanted_.push_back(to);
    }
  }
  if (there) {
    watch(to, pipe);
    return connect_express(to, *there);
  }
  for (const Kept& message : backlog) core_.failed(to, message->message.id(), *failure);
}

// What had to wait, for the pipe or for the device that it is copied from, before what was sent meanwhile. Others write
// by themselves once there is no more.
void Agent::write_backlog(int32_t to) {
  constexpr ptrdiff_t kMost = 256;  // at a time
  Pipe pipe;
  std::vector<Kept> batch;
  {
    std::unique_lock lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    pipe = peer.pipe;
    if (!pipe) return wanted_.push_back(to);  // it broke
    const auto first = peer.backlog.begin();
    const auto last = std::find_if(first, first + std::min(kMost, peer.backlog.end() - first), is_on_device);
    if (first == last && first != peer.backlog.end()) {
      const Kept next = std::move(*first);
      peer.backlog.pop_front();
      lock.unlock();
      return stage(to, next);
    }
    batch.assign(std::make_move_iterator(first), std::make_move_iterator(last));
    peer.backlog.erase(first, last);
    peer.wanted = !batch.empty();
    if (peer.wanted) wanted_.push_back(to);
  }
  for (const Kept& message : batch) {
    if (over_) return;
    write(to, pipe, message);
  }
}

// As long as this takes, what is sent to that worker waits behind it, and all else goes on.
void Agent::stage(int32_t to, const Kept& message) {
  staging_->copy_out(message, to, [this, to, message](const sdk::Failure* failure) {
    if (over_) return;
    if (failure != nullptr) core_.failed(to, message->message.id(), *failure);
    const std::lock_guard lock(mutex_);
    if (failure == nullptr) peers_[static_cast<size_t>(to)].backlog.push_front(message);
    wanted_.push_back(to);
    changed_.notify_all();
  });
}

void Agent::write(int32_t to, const Pipe& pipe, const Kept& message) {
  const uint64_t id = message->message.id();
  const Token& token = peers_[static_cast<size_t>(to)].token;
  Express express;
  Before before;
  {
    const bool may_overtake = id != 0 && is_small(message->message);
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (may_overtake && peer.is_open && peer.pipe == pipe) {
      express = peer.express;
      ++peer.sent.messages;
    }
    if (peer.pipe == pipe) before = peer.sent;
  }
  if (express) return write_express(to, express, message, before);
  ::tensorpipe::Message out;
  try {
    out = to_tensorpipe(message->message, token, rank_, message->staged.get(), before);
  } catch (const sdk::Failure& failure) {
    return core_.failed(to, id, failure);
  }
  if (id == 0) {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.pipe == pipe) peer.unread.push_back(message);  // else it was forgotten, and gives no receipts
  }
  pipe->write(std::move(out), [this, to, message, weak = std::weak_ptr(pipe)](const ::tensorpipe::Error& error) {
    if (!error) return;
    if (const Pipe broken = weak.lock()) forget(to, broken);
    if (!over_) core_.failed(to, message->message.id(), failure_of(error, to));
  });
}

// A pipe that this worker has made is read for receipts and for its end. That a message was written says only that the
// kernel has it: if the pipe breaks, any call that has not been answered may have been lost with it.
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
    if (!forget(to, same) || over_) return;
    core_.lost(to, error ? failure_of(error, to) : sdk::Failure(BP_INTERNAL, "it sends what is no receipt", to));
  });
}

void Agent::take_receipt(int32_t to) {
  Kept read;  // given back without the lock
  const std::lock_guard lock(mutex_);
  std::deque<Kept>& unread = peers_[static_cast<size_t>(to)].unread;
  if (unread.empty()) return;
  read.swap(unread.front());
  unread.pop_front();
}

// The next message makes a new one. False: it was forgotten before.
bool Agent::forget(int32_t to, const Pipe& pipe) {
  std::deque<Kept> unread;
  Express express;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.pipe != pipe) return false;
    peer.pipe = nullptr;  // the caller has it, too
    express.swap(peer.express);
    peer.is_open = false;
    unread.swap(peer.unread);
  }
  pipe->close();
  if (express) express->close();
  return true;
}

// Whoever connects waits until it is accepted.
std::shared_ptr<::tensorpipe::Listener> Agent::listen() {
  std::vector<std::string> urls;
  for (const auto& url : endpoint_.urls) urls.push_back(url());
  std::shared_ptr<::tensorpipe::Listener> listener = endpoint_.context->listen(urls);
  std::shared_ptr<::tensorpipe::Listener> last;
  {
    const std::lock_guard lock(mutex_);
    if (over_) return listener;
    last = std::exchange(listener_, listener);
  }
  tell(*listener);
  return listener;
}

bool Agent::listen_again() {
  try {
    accept(listen());
    return true;
  } catch (const std::exception& e) {
    if (!over_) host_.log(BP_LOG_WARN, std::string("nobody can connect for now: ") + e.what());
    return false;
  }
}

// A listener that is made on one of TensorPipe's threads has no address yet, hence a thread of our own. It does one
// thing in turn, so that a flood of messages to one holds up nothing else.
void Agent::tend() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point listens_at = Clock::now();
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (deaf_ && Clock::now() >= listens_at) {
      deaf_ = false;
      lock.unlock();
      const bool listens = listen_again();
      lock.lock();
      if (listens) continue;
      deaf_ = true;
      listens_at = Clock::now() + kRetry;
    } else if (!wanted_.empty()) {
      const int32_t to = wanted_.front();
      wanted_.pop_front();
      const bool is_connected = peers_[static_cast<size_t>(to)].pipe != nullptr;
      lock.unlock();
      if (is_connected) {
        write_backlog(to);
      } else {
        connect(to);
      }
      lock.lock();
    } else if (deaf_) {
      changed_.wait_until(lock, listens_at);
    } else {
      changed_.wait(lock);
    }
  }
}

void Agent::accept(const std::shared_ptr<::tensorpipe::Listener>& listener) {
  // Weak, because a listener keeps its callbacks.
  listener->accept([this, weak = std::weak_ptr(listener)](const ::tensorpipe::Error& error, const Pipe& pipe) {
    const auto same = weak.lock();
    if (!same || over_) return;
    if (error) {  // somebody went away in the middle of a handshake, and nobody could connect any more
      host_.log(BP_LOG_INFO, "listening anew: " + error.what());
      same->close();
      const std::lock_guard lock(mutex_);
      deaf_ = true;
      changed_.notify_all();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      if (!over_) incoming_.insert(pipe);
    }
    accept(same);
    read(pipe, std::make_shared<Incoming>());
  });
}

void Agent::abort(const sdk::Failure&) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (over_.exchange(true)) return;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (staging_) staging_->stop();
  endpoint_.context->close();
  endpoint_.context->join();  // all callbacks have run
  memory_->close();
  // Given back without the lock: messages may run destructors of the program's.
  std::vector<Kept> unsent;
  std::vector<Early> early;
  std::set<Pipe> pipes;
  std::set<Express> connections;
  std::shared_ptr<::tensorpipe::Listener> listener;
  std::shared_ptr<::tensorpipe::transport::Listener> express_listener;
  const std::lock_guard lock(mutex_);
  for (Peer& peer : peers_) {
    std::move(peer.backlog.begin(), peer.backlog.end(), std::back_inserter(unsent));
    peer.backlog.clear();
    std::move(peer.unread.begin(), peer.unread.end(), std::back_inserter(unsent));
    peer.unread.clear();
    std::move(peer.early.begin(), peer.early.end(), std::back_inserter(early));
    peer.early.clear();
    if (peer.pipe) pipes.insert(std::move(peer.pipe));
    if (peer.express) connections.insert(std::move(peer.express));
  }
  pipes.merge(incoming_);
  connections.merge(incoming_express_);
  listener.swap(listener_);
  express_listener.swap(express_listener_);
}

}  // namespace backplane::tensorpipe
