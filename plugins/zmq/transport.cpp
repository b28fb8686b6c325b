// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <cstring>
#include <random>

#include "address.hpp"
#include "backplane/base/grace.hpp"
#include "resources.hpp"

namespace backplane::zmq {
namespace {

constexpr const char* kEvents = "inproc://events";
constexpr int kReplyLimit = 4096;  // bytes; a goodbye with its reason is the largest

// Upper bound of what CURVE adds to a frame: command name, nonce, flags, authenticator.
constexpr int64_t kCurveBytes = 64;

// libzmq connects again at the earliest after this time, when a rank whose connection broke has long been lost.
constexpr std::chrono::seconds kReconnect(1);
static_assert(kReconnect >= std::chrono::nanoseconds(2 * base::grace::kBrokenConnection));
constexpr int kMostRetries = 3;  // of a connection for which this process has no descriptor

constexpr std::chrono::seconds kHandshakeTime(10);
constexpr const char* kName = "backplane";  // PLAIN needs one

// Connections that wait to be accepted. A full queue refuses local sockets, where TCP retries.
constexpr int kBacklog = 4096;

// libzmq requires routing ids that do not begin with a zero byte.
std::string route_to(int32_t rank, uint32_t dial) {
  std::string route(1 + sizeof rank + sizeof dial, 'r');
  std::memcpy(route.data() + 1, &rank, sizeof rank);
  std::memcpy(route.data() + 1 + sizeof rank, &dial, sizeof dial);
  return route;
}

int in_milliseconds(std::chrono::milliseconds duration) { return static_cast<int>(duration.count()); }

// zmq_msg_send without exceptions. On failure zmq_errno() is set. Retries when a signal handler has interrupted it.
bool send(::zmq::message_t& frame, ::zmq::socket_t& socket, int flags) {
  for (;;) {
    if (zmq_msg_send(frame.handle(), socket.handle(), flags | ZMQ_DONTWAIT) >= 0) return true;
    if (zmq_errno() != EINTR) return false;
  }
}

void configure(::zmq::socket_t& socket, const Settings& settings) {
  socket.set(::zmq::sockopt::linger, 0);  // until close(): a broken connection discards its messages at once
  socket.set(::zmq::sockopt::sndhwm, settings.send_high_water_mark);
  socket.set(::zmq::sockopt::rcvhwm, settings.receive_high_water_mark);
  socket.set(::zmq::sockopt::router_mandatory, true);
  socket.set(::zmq::sockopt::handshake_ivl, in_milliseconds(kHandshakeTime));
  if (settings.heartbeat.count() > 0) {
    socket.set(::zmq::sockopt::heartbeat_ivl, in_milliseconds(settings.heartbeat));
    socket.set(::zmq::sockopt::heartbeat_timeout, 3 * in_milliseconds(settings.heartbeat));
  }
}

}  // namespace

bool receive(::zmq::message_t& frame, ::zmq::socket_t& socket) {
  for (;;) {
    if (zmq_msg_recv(frame.handle(), socket.handle(), ZMQ_DONTWAIT) >= 0) return true;
    if (zmq_errno() != EINTR) return false;
  }
}

Sockets::Sockets(const Settings& settings, bool secure, size_t peers)
    : settings_((require_resources(settings.io_threads), settings)),
      own_(secure ? make_key_pair() : KeyPair()),
      context_(settings.io_threads),
      zap_(context_),
      listening_(context_, ::zmq::socket_type::router),
      dialling_(context_, ::zmq::socket_type::router),
      events_(context_, ::zmq::socket_type::pair) {
  keep_memory_for_messages();
  configure(listening_, settings);
  listening_.set(::zmq::sockopt::maxmsgsize, int64_t{settings.max_message_size} + (secure ? kCurveBytes : 0));
  secure ? require_curve(listening_, own_) : require_token(listening_);
  limiter_.emplace(context_, listening_, peers);
  listen();

  configure(dialling_, settings);
  dialling_.set(::zmq::sockopt::maxmsgsize, int64_t{kReplyLimit} + (secure ? kCurveBytes : 0));
  if (secure) {
    dialling_.set(::zmq::sockopt::curve_publickey, own_.public_key);
    dialling_.set(::zmq::sockopt::curve_secretkey, own_.private_key);
  }
  erase_key(own_.private_key);  // libzmq has copied it
  // Reconnecting cannot be turned off: libzmq would discard received messages of a broken connection, such as a
  // goodbye.
  dialling_.set(::zmq::sockopt::reconnect_ivl, in_milliseconds(kReconnect));
  dialling_.set(::zmq::sockopt::connect_timeout, in_milliseconds(settings.connect_timeout));
  // A retry follows each failure. It is the only event of a connection for which there was no descriptor.
  constexpr int kWatched = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED |
                           ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                           ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  if (zmq_socket_monitor(dialling_.handle(), kEvents, kWatched) != 0) throw ::zmq::error_t();
  events_.set(::zmq::sockopt::linger, 0);
  events_.connect(kEvents);
}

void Sockets::listen() {
  listening_.set(::zmq::sockopt::backlog, kBacklog);
  const bool ipv6 = settings_.address.find(':') != std::string::npos;
  listening_.set(::zmq::sockopt::ipv6, ipv6);
  const std::string address = ipv6 ? "[" + settings_.address + "]" : settings_.address;
  try {
    listening_.bind("tcp://" + address + ":*");
  } catch (const ::zmq::error_t& e) {
    throw sdk::Failure(BP_RESOURCE, "zmq: cannot listen on " + address + ": " + e.what(), -1, e.num());
  }
  endpoint_ = listening_.get(::zmq::sockopt::last_endpoint);
  if (!settings_.ipc) return;
  std::random_device random;
  const uint64_t name = (static_cast<uint64_t>(random()) << 32) | random();
  local_endpoint_ = local_prefix() + std::to_string(name);
  try {
    listening_.bind(local_endpoint_);
  } catch (const ::zmq::error_t& e) {
    throw sdk::Failure(BP_RESOURCE,
                       std::string("zmq: cannot listen on a local socket: ") + e.what() + "; use transport=tcp", -1,
                       e.num());
  }
}

Sockets::~Sockets() {
  close({}, {});
  shut_down();
}

std::vector<int> Sockets::descriptors() {
  return {listening_.get(::zmq::sockopt::fd), dialling_.get(::zmq::sockopt::fd), events_.get(::zmq::sockopt::fd),
          zap_.descriptor(), limiter_->descriptor()};
}

void Sockets::dial(int32_t rank, const std::string& endpoint, const std::string& credential) {
  // Of the next connection.
  if (secure()) {
    dialling_.set(::zmq::sockopt::curve_serverkey, credential);
  } else {
    dialling_.set(::zmq::sockopt::plain_username, std::string(kName));
    dialling_.set(::zmq::sockopt::plain_password, credential);
  }
  const std::string route = route_to(rank, ++dials_);
  dialling_.set(::zmq::sockopt::connect_routing_id, route);
  dialling_.set(::zmq::sockopt::ipv6, endpoint.find('[') != std::string::npos);
  dialling_.connect(endpoint);
  ranks_[endpoint] = rank;
  dialled_[rank] = {endpoint, route};
}

void Sockets::disconnect(int32_t rank) {
  const auto found = dialled_.find(rank);
  if (found == dialled_.end()) return;
  // Fails if libzmq has already closed the connection.
  zmq_disconnect(dialling_.handle(), found->second.endpoint.c_str());
  ranks_.erase(found->second.endpoint);
  dialled_.erase(found);
}

Sent Sockets::begin(int32_t rank) {
  const auto found = dialled_.find(rank);
  if (found == dialled_.end()) return Sent::kNotConnected;
  ::zmq::message_t frame(found->second.route.data(), found->second.route.size());
  if (send(frame, dialling_, ZMQ_SNDMORE)) return Sent::kYes;
  return zmq_errno() == EAGAIN ? Sent::kFull : Sent::kNotConnected;
}

void Sockets::send_part(::zmq::message_t& frame, bool more) { send(frame, dialling_, more ? ZMQ_SNDMORE : 0); }

void Sockets::reply(const std::string& route, ::zmq::message_t frame) {
  ::zmq::message_t first(route.data(), route.size());
  if (send(first, listening_, ZMQ_SNDMORE)) send(frame, listening_, 0);
}

bool Sockets::receive_from(::zmq::socket_t& socket, Inbound& message) {
  if (!zmq::receive(message.route, socket)) return false;
  message.frames = 0;
  bool more = message.route.more();
  // All frames of a message become readable together.
  while (more) {
    ::zmq::message_t excess;
    ::zmq::message_t& frame = message.frames == 0 ? message.frame : message.frames == 1 ? message.body : excess;
    if (!zmq::receive(frame, socket)) break;
    more = frame.more();
    if (message.frames < 3) ++message.frames;
  }
  return true;
}

bool Sockets::receive(::zmq::message_t& route, std::vector<::zmq::message_t>& frames) {
  frames.clear();
  if (!zmq::receive(route, listening_)) return false;
  bool more = route.more();
  while (more && zmq::receive(frames.emplace_back(), listening_)) more = frames.back().more();
  return true;
}

std::optional<int32_t> Sockets::broken() {
  ::zmq::message_t event;
  ::zmq::message_t address;
  while (zmq::receive(event, events_)) {
    if (!event.more() || !zmq::receive(address, events_)) continue;
    const auto found = ranks_.find(address.to_string());
    if (found == ranks_.end()) continue;
    uint16_t kind = 0;
    if (event.size() >= sizeof kind) std::memcpy(&kind, event.data(), sizeof kind);
    // Its messages still wait in libzmq, which connects again.
    if (kind == ZMQ_EVENT_CONNECT_RETRIED && ++dialled_[found->second].retries <= kMostRetries) continue;
    return found->second;
  }
  return std::nullopt;
}

void Sockets::close(std::chrono::milliseconds linger_dialled, std::chrono::milliseconds linger_listening) {
  if (dialling_.handle() == nullptr) return;
  zmq_socket_monitor(dialling_.handle(), nullptr, 0);
  events_.close();
  dialling_.set(::zmq::sockopt::linger, in_milliseconds(linger_dialled));
  dialling_.close();
  limiter_->close();
  listening_.set(::zmq::sockopt::linger, in_milliseconds(linger_listening));
  listening_.close();
  zap_.close();
}

void Sockets::shut_down() { context_.close(); }

int32_t Sockets::rank_of(const ::zmq::message_t& route) {
  int32_t rank = -1;
  if (route.size() == 1 + sizeof rank + sizeof(uint32_t)) std::memcpy(&rank, route.data<char>() + 1, sizeof rank);
  return rank;
}

}  // namespace backplane::zmq
