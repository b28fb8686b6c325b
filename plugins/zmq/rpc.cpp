// SPDX-License-Identifier: Apache-2.0
#include "rpc.hpp"

#include <sys/random.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include "address.hpp"
#include "backplane/sdk/worker.hpp"

namespace backplane::zmq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFarNs = INT64_C(365) * 24 * 3600 * 1000000000;  // beyond it clocks would overflow

// While a message waits for its confirmation, the agent's thread looks that often at least.
constexpr std::chrono::milliseconds kLook(500);

// After a worker was out of reach, before it is dialled again for the next message.
constexpr std::chrono::seconds kTryAgain(5);

// Those of the process groups, but for messages of any size in any number.
Settings settings_of(const sdk::Context& context, uint64_t max_message_bytes) {
  Settings settings = read_settings(context.options);
  settings.send_high_water_mark = 0;
  settings.max_message_size = static_cast<int64_t>(max_message_bytes + kMostOverhead);
  return settings;
}

}  // namespace

void RpcAgent::Finished::add(std::unique_ptr<Departure> message) {
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    any_ = true;
  }
  if (agent_.asleep_) agent_.wake_.raise();
}

std::vector<std::unique_ptr<Departure>> RpcAgent::Finished::take() {
  if (!any_.exchange(false)) return {};
  const std::lock_guard lock(mutex_);
  return std::exchange(messages_, {});
}

RpcAgent::RpcAgent(const sdk::Context& context)
    : core_(context.host),
      host_(context.host),
      rank_(context.rank),
      settings_(settings_of(context, core_.max_message_bytes())),
      finished_(this),
      sockets_(settings_, context.host.secure()),
      peers_(static_cast<size_t>(context.world_size)) {
  if (getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size())) {
    throw sdk::Failure(BP_RESOURCE, "zmq: the system gives no random bytes");
  }
  publish_address();
  for (int32_t rank = 0; rank < context.world_size; ++rank) learn(rank, context);
  polled_.push_back({wake_.get(), POLLIN, 0});
  for (const int descriptor : sockets_.descriptors()) polled_.push_back({descriptor, POLLIN, 0});
  thread_ = sdk::start_thread([this] { run(); });
}

RpcAgent::~RpcAgent() { abort(sdk::Failure(BP_CANCELLED, "this worker has left")); }

// The token comes first, then words: on which host, and where there.
void RpcAgent::publish_address() {
  host_.store_set(
      address_key(rank_),
      std::string(token_.data(), token_.size()).append(host_identity()).append(" ").append(format_address(sockets_)));
}

void RpcAgent::learn(int32_t rank, const sdk::Context& context) {
  if (rank == rank_) return;
  const std::string card = host_.store_get(address_key(rank), context.timeout_ns);
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const size_t space = card.find(' ', std::min(card.size(), peer.token.size()));
  if (space == std::string::npos) throw sdk::Failure(BP_INVALID, "zmq: a worker has left a broken card", rank);
  std::copy_n(card.begin(), peer.token.size(), peer.token.begin());
  const std::string host = card.substr(peer.token.size(), space - peer.token.size());
  peer.address = parse_address(card.substr(space + 1), settings_.ipc);
  if (peer.address.public_key.size() == kCurveKeySize) keys_[peer.address.public_key] = rank;
  if (host == host_identity()) return;
  const std::string& endpoint = peer.address.endpoint;
  if (endpoint.starts_with("tcp://127.") || endpoint.starts_with("tcp://[::1]")) refuse_loopback(rank_, rank, rank);
  if (is_loopback(settings_.address)) refuse_loopback(rank_, rank, rank_);
}

void RpcAgent::send(int32_t to, sdk::RpcMessage message, int64_t timeout_ns) {
  if (message.buffers().size() >= kMostParts) {
    throw sdk::Failure(BP_INVALID,
                       "a message has " + std::to_string(message.buffers().size()) + " buffers; pack them into fewer");
  }
  for (const bp_buffer& buffer : message.buffers()) {
    if (buffer.memory != BP_HOST) {
      throw sdk::Failure(BP_UNSUPPORTED,
                         "zmq carries host memory only; choose tensorpipe, with device_maps, for arrays of devices, "
                         "or copy them to the host");
    }
  }
  const TimePoint now = Clock::now();
  const TimePoint limit =
      timeout_ns < 0 || timeout_ns > kFarNs ? TimePoint::max() : now + std::chrono::nanoseconds(timeout_ns);
  const std::lock_guard lock(mutex_);
  if (ended_) throw sdk::Failure(*ended_);
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.gone && now < peer.lost_at + kTryAgain) throw sdk::Failure(*peer.gone);
  if (std::exchange(peer.gone, std::nullopt)) peer.failures = 0;
  auto departure = std::make_unique<Departure>(std::move(message), peer.last_number + 1, limit);
  const Kept kept(departure.release(), [this](Departure* gone) { finished_.add(std::unique_ptr<Departure>(gone)); });
  ++peer.last_number;
  if (peer.unconfirmed.empty()) peer.asked_at = now;
  peer.unconfirmed.push_back(kept);
  try {
    if (!peer.dialled || !post(to, RpcKind::kMessage, kept)) return call_at(peer.dial_at);
  } catch (...) {
    peer.unconfirmed.pop_back();  // else it would be sent once more
    throw;
  }
  if (due_ > now + kLook) call_at(now + kLook);
}

// The thread sleeps no longer than that.
void RpcAgent::call_at(TimePoint due) {
  due_ = std::min(due_, due);
  wake();
}

void RpcAgent::wake() {
  called_ = true;
  if (asleep_) wake_.raise();
}

void RpcAgent::run() {
  try {
    serve();
  } catch (const std::exception& e) {
    give_up(sdk::Failure(BP_RESOURCE, std::string("zmq: this worker's agent has ended: ").append(e.what())));
  }
}

// Mostly for lack of memory. The peers see their connections break and cannot reconnect.
void RpcAgent::give_up(const sdk::Failure& why) {
  News news;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) ended_.emplace(why);
    sockets_.close({}, {});
    for (int32_t rank = 0; rank < static_cast<int32_t>(peers_.size()); ++rank) {
      Peer& peer = peers_[static_cast<size_t>(rank)];
      for (const Kept& message : peer.unconfirmed) news.failed.push_back({rank, message->message.id(), why});
      peer.unconfirmed.clear();
    }
  }
  news.lost.emplace_back(-1, why);
  tell(news);
}

void RpcAgent::serve() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    News news;
    const bool busy = receive(&news);
    const TimePoint due = keep_up(&news);
    lock.unlock();
    tell(news);
    finished_.take();
    if (busy) {
      busy_until_ = Clock::now() + settings_.poll;
    } else {
      sleep(due);
    }
    lock.lock();
  }
}

void RpcAgent::tell(const News& news) {
  for (const auto& [rank, why] : news.back) core_.lost(rank, why);
  for (const auto& arrival : news.arrivals) {
    core_.received(arrival->from, arrival->payload, arrival->buffers, arrival);
  }
  for (const News::Failed& each : news.failed) core_.failed(each.to, each.id, each.why);
  for (const auto& [rank, why] : news.lost) core_.lost(rank, why);
}

void RpcAgent::sleep(TimePoint until) {
  asleep_ = true;
  if (!called_.exchange(false) && !finished_.any()) {
    if (!spin_policy_.poll(std::min(until, busy_until_), [this] { return poll(TimePoint::min()); })) poll(until);
  }
  asleep_ = false;
  if (polled_[0].revents != 0) wake_.clear();
}

bool RpcAgent::poll(TimePoint until) {
  for (pollfd& each : polled_) each.revents = 0;
  const TimePoint now = Clock::now();
  const auto left = until <= now ? std::chrono::nanoseconds(0) : std::min(until, now + std::chrono::hours(24)) - now;
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  const timespec timeout = {seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
  return ppoll(polled_.data(), polled_.size(), &timeout, nullptr) > 0;
}

void RpcAgent::abort(const sdk::Failure& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(aborted_, true)) return;
    if (!ended_) ended_.emplace(why);
    wake();
  }
  if (thread_.joinable()) thread_.join();
  sockets_.close({}, {});
  sockets_.shut_down();  // libzmq has no buffer any more
  for (Peer& peer : peers_) peer.unconfirmed.clear();
  finished_.take();
}

}  // namespace backplane::zmq
