// SPDX-License-Identifier: Apache-2.0
#include "agent.hpp"

#include <dlfcn.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <utility>

#include "backplane/sdk/worker.hpp"
#include "fault.hpp"

namespace backplane::tensorpipe_plugin {
namespace {

// Those that the driver counts; it is not needed otherwise.
int device_count() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  if (init == nullptr || count == nullptr || init(0) != 0 || count(&devices) != 0) return 0;
  return devices;
}

std::string key_of(int32_t rank) { return "worker/" + std::to_string(rank); }

}  // namespace

Agent::Agent(const sdk::Context& context)
    : core_(context.host),
      host_(context.host),
      rank_(context.rank),
      name_(context.name),
      endpoint_(make_endpoint(context.name, context.options.text("address"), context.options.text("transports"),
                              context.options.text("channels"), context.host)),
      peers_(static_cast<size_t>(context.world_size)),
      maps_(parse_device_maps(context.options.text("device_maps"))) {
  if (getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size())) {
    throw sdk::Failure(BP_RESOURCE, "the system gives no random bytes");
  }
  try {
    listen(endpoint_.addresses());
    listening_ = sdk::start_thread([this] { keep_listening(); });
    std::vector<WorkerDevices> workers;
    for (int32_t rank = 0; rank < context.world_size; ++rank) workers.push_back(learn(rank, context.timeout_ns));
    check_device_maps(workers);
    reverse_ = reverse_device_maps(workers, context.name);
  } catch (...) {
    abort(sdk::Failure(BP_CANCELLED, "the agent could not start"));
    throw;
  }
}

Agent::~Agent() { abort(sdk::Failure(BP_CANCELLED, "this worker has left")); }

bool Agent::over() const {
  const std::lock_guard lock(mutex_);
  return over_;
}

// Token, URL, name, number of devices, maps: one a line, but for the token, which comes first.
void Agent::tell() {
  std::string card(token_.data(), token_.size());
  {
    const std::lock_guard lock(mutex_);
    card.append(listener_->url(endpoint_.first)).append("\n").append(name_).append("\n");
  }
  card.append(std::to_string(device_count())).append("\n").append(format_device_maps(maps_)).append("\n");
  host_.store_set(key_of(rank_), card);
}

WorkerDevices Agent::learn(int32_t rank, int64_t timeout_ns) {
  const std::string card = host_.store_get(key_of(rank), timeout_ns);
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const std::lock_guard lock(peer.mutex);
  if (card.size() < peer.token.size()) throw sdk::Failure(BP_INVALID, "a worker has left a broken card", rank);
  std::copy_n(card.begin(), peer.token.size(), peer.token.begin());
  std::istringstream lines(card.substr(peer.token.size()));
  WorkerDevices worker;
  std::string count;
  std::string maps;
  std::getline(lines, peer.url);
  std::getline(lines, worker.name);
  std::getline(lines, count);
  std::getline(lines, maps);
  worker.count = std::atoi(count.c_str());
  worker.maps = parse_device_maps(maps);
  return worker;
}

void Agent::send(int32_t to, sdk::RpcMessage message, int64_t) {
  if (over()) throw sdk::Failure(BP_CANCELLED, "this worker has left");
  Peer& peer = peers_[static_cast<size_t>(to)];
  const auto kept = std::make_shared<sdk::RpcMessage>(std::move(message));
  Pipe pipe;
  {
    const std::lock_guard lock(peer.mutex);
    pipe = peer.pipe;
    if (!pipe) peer.backlog.push_back(kept);
    if (!pipe && std::exchange(peer.connecting, true)) return;  // whoever makes it sends this, too
  }
  if (pipe) return write(to, pipe, kept);
  connect(to);
}

// One thread makes the pipe, so that none is made in vain: TensorPipe's listener fails for good when one goes away
// while it is being accepted.
void Agent::connect(int32_t to) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  Pipe pipe;
  std::optional<sdk::Failure> failure;
  try {
    learn(to, 0);  // it may listen elsewhere by now
    pipe = endpoint_.context->connect(peer.url, tensorpipe::PipeOptions().remoteName(std::to_string(to)));
  } catch (const sdk::Failure& e) {
    failure.emplace(BP_PEER_LOST, std::string("its address is not to be had: ") + e.what(), to);
  }
  std::vector<Kept> backlog;
  {
    const std::lock_guard lock(peer.mutex);
    peer.connecting = false;
    peer.pipe = pipe;
    backlog.swap(peer.backlog);
  }
  for (const Kept& message : backlog) {
    if (failure) {
      core_.failed(to, message->id(), *failure);
    } else {
      write(to, pipe, message);
    }
  }
}

void Agent::write(int32_t to, const Pipe& pipe, const Kept& message) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  Token token;
  {
    const std::lock_guard lock(peer.mutex);
    token = peer.token;
  }
  tensorpipe::Message out;
  try {
    out = to_tensorpipe(*message, token, rank_);
  } catch (const sdk::Failure& failure) {
    return core_.failed(to, message->id(), failure);
  }
  pipe->write(std::move(out), [this, to, message, weak = std::weak_ptr(pipe)](const tensorpipe::Error& error) {
    if (!error) return;
    if (const Pipe broken = weak.lock()) forget(peers_[static_cast<size_t>(to)], broken);
    if (!over()) core_.failed(to, message->id(), failure_of(error, to));
  });
}

// The next message makes a new one.
void Agent::forget(Peer& peer, const Pipe& pipe) {
  Pipe broken;
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.pipe == pipe) broken = std::exchange(peer.pipe, nullptr);
  }
  if (broken) broken->close();
}

void Agent::listen(const std::vector<std::string>& urls) {
  const std::shared_ptr<tensorpipe::Listener> listener = endpoint_.context->listen(urls);
  {
    const std::lock_guard lock(mutex_);
    if (over_) return listener->close();
    listener_ = listener;
  }
  tell();
  accept(listener);
}

// A listener that is made on one of TensorPipe's threads has no address yet, hence a thread of our own.
void Agent::keep_listening() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return over_ || deaf_; });
    if (over_) return;
    deaf_ = false;
    lock.unlock();
    try {
      listen(endpoint_.addresses());
    } catch (const std::exception& e) {
      if (!over()) host_.log(BP_LOG_ERROR, std::string("nobody can connect any more: ") + e.what());
    }
    lock.lock();
  }
}

void Agent::accept(const std::shared_ptr<tensorpipe::Listener>& listener) {
  // Weak, because a listener keeps its callbacks.
  listener->accept([this, weak = std::weak_ptr(listener)](const tensorpipe::Error& error, const Pipe& pipe) {
    const auto same = weak.lock();
    if (!same || over()) return;
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
    read(pipe);
  });
}

void Agent::drop(const Pipe& pipe) {
  {
    const std::lock_guard lock(mutex_);
    incoming_.erase(pipe);
  }
  pipe->close();
}

void Agent::read(const Pipe& pipe) {
  // Weak, because a pipe keeps its callbacks.
  pipe->readDescriptor([this, weak = std::weak_ptr(pipe)](const tensorpipe::Error& error,
                                                          const tensorpipe::Descriptor& descriptor) {
    const Pipe same = weak.lock();
    if (!same) return;
    if (error) return drop(same);
    std::shared_ptr<Arrival> arrival;
    try {
      arrival = std::make_shared<Arrival>(descriptor, token_, static_cast<int32_t>(peers_.size()), core_.most_bytes());
    } catch (const std::exception& e) {
      host_.log(BP_LOG_WARN, e.what());
      return drop(same);
    }
    same->read(arrival->allocation(), [this, arrival](const tensorpipe::Error& failed) {
      if (failed || over()) return;
      core_.received(arrival->from(), arrival->payload(), arrival->buffers(), arrival);
    });
    read(same);
  });
}

void Agent::abort(const sdk::Failure&) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(over_, true)) return;
    changed_.notify_all();
  }
  if (listening_.joinable()) listening_.join();
  endpoint_.context->close();
  endpoint_.context->join();  // all callbacks have run
  const std::lock_guard lock(mutex_);
  incoming_.clear();
  listener_.reset();
}

}  // namespace backplane::tensorpipe_plugin
