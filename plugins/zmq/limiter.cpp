// SPDX-License-Identifier: Apache-2.0
#include "limiter.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "backplane/base/pending_connections.hpp"
#include "backplane/base/tcp_info.hpp"
#include "backplane/sdk/failure.hpp"
#include "transport.hpp"

namespace backplane::zmq {
namespace {

constexpr const char* kAccepted = "inproc://accepted";

// A rank sends a small message as soon as it has connected: a hello or a receipt.
constexpr std::chrono::seconds kLongestPending(10);
constexpr std::chrono::seconds kInterval(1);
constexpr std::chrono::milliseconds kPause(1);  // a busy group has no time for each event
// Without a call for this long, the process was suspended: messages may wait in the kernel.
constexpr std::chrono::seconds kSuspended(3);

// The pending connections of all sockets of this process.
std::atomic<size_t> g_pending = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): they share a limit

// Unique among all sockets since the start of the system; 0 for other files.
uint64_t cookie_of(int descriptor) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

}  // namespace

ConnectionLimiter::ConnectionLimiter(::zmq::context_t& context, ::zmq::socket_t& listening, size_t peers)
    : peers_(peers),
      listening_(listening),
      events_(context, ::zmq::socket_type::pair),
      shut_(::fcntl(unused_.get(), F_DUPFD_CLOEXEC, 3)) {
  if (!shut_) throw sdk::Failure(BP_RESOURCE, "zmq: cannot duplicate a descriptor", -1, errno);
  if (zmq_socket_monitor(listening.handle(), kAccepted, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) != 0) {
    throw ::zmq::error_t();
  }
  events_.set(::zmq::sockopt::linger, 0);
  events_.set(::zmq::sockopt::rcvhwm, 0);  // libzmq's threads would block on a full queue
  events_.connect(kAccepted);
}

ConnectionLimiter::~ConnectionLimiter() { close(); }

void ConnectionLimiter::close() {
  if (events_.handle() == nullptr) return;
  zmq_socket_monitor(listening_.handle(), nullptr, 0);
  events_.close();
  forget_pending();
}

void ConnectionLimiter::forget_pending() {
  g_pending -= pending_.size();
  pending_.clear();
  ages_.clear();
}

int ConnectionLimiter::descriptor() { return events_.get(::zmq::sockopt::fd); }

void ConnectionLimiter::take_events(TimePoint now) {
  ::zmq::message_t event;
  ::zmq::message_t address;
  while (events_.handle() != nullptr && zmq::receive(event, events_)) {
    if (!event.more() || !zmq::receive(address, events_)) continue;
    uint16_t kind = 0;
    int32_t descriptor = -1;
    if (event.size() != sizeof kind + sizeof descriptor) continue;
    std::memcpy(&kind, event.data(), sizeof kind);
    std::memcpy(&descriptor, event.data<char>() + sizeof kind, sizeof descriptor);
    if (!address.to_string_view().starts_with("tcp://")) continue;  // messages of others have no descriptor
    kind == ZMQ_EVENT_ACCEPTED ? accepted(descriptor, now) : closed(descriptor);
  }
}

void ConnectionLimiter::accepted(int descriptor, TimePoint now) {
  closed(descriptor);
  const uint64_t cookie = cookie_of(descriptor);
  if (cookie == 0 || is_off_) return;  // closed already
  const auto age = ages_.emplace(descriptor, ++last_age_).first;
  try {
    pending_.emplace(last_age_, Connection{descriptor, cookie, now});
  } catch (...) {
    ages_.erase(age);
    throw;
  }
  ++g_pending;
}

void ConnectionLimiter::closed(int descriptor) {
  proven_.erase(descriptor);
  const auto found = ages_.find(descriptor);
  if (found == ages_.end()) return;
  pending_.erase(found->second);
  ages_.erase(found);
  --g_pending;
}

void ConnectionLimiter::prove(const ::zmq::message_t& frame) {
  update();
  const int descriptor = zmq_msg_get(frame.handle(), ZMQ_SRCFD);
  if (descriptor < 0) {
    is_off_ = true;
    forget_pending();
  }
  const auto found = ages_.find(descriptor);
  if (found == ages_.end()) return;
  pending_.erase(found->second);
  ages_.erase(found);
  --g_pending;
  proven_.insert(descriptor);
}

TimePoint ConnectionLimiter::enforce(TimePoint now) {
  // The descriptor stays readable.
  if (now < enforced_at_ + kPause) return pending_.empty() ? TimePoint::max() : enforced_at_ + kInterval;
  const bool was_suspended = now - enforced_at_ > kSuspended;
  enforced_at_ = now;
  if (was_suspended) {
    for (auto& [age, connection] : pending_) connection.since = now;
  }
  take_events(now);
  if (pending_.empty() || is_off_) return TimePoint::max();
  // Ranks that have not connected may do so all at once.
  const size_t missing = peers_ - std::min(peers_, proven_.size());
  const size_t most = base::max_pending_connections();
  const auto are_too_many = [&] { return pending_.size() > missing && g_pending > most; };
  // Those that have sent nothing first: a rank sends at once, but on a busy machine this process may accept many
  // connections from outside the job before it reads that. The newest may be of ranks that have only just connected.
  size_t older = pending_.size() - std::min(missing, pending_.size());
  for (auto each = pending_.begin(); older > 0 && are_too_many(); --older) {
    Connection& connection = (each++)->second;
    const std::optional<base::TcpInfo> info = base::tcp_info_of(connection.descriptor);
    if (!info || info->bytes_received == 0) end(connection);
  }
  while (!pending_.empty() && (are_too_many() || now - pending_.begin()->second.since >= kLongestPending)) {
    end(pending_.begin()->second);
  }
  return pending_.empty() ? TimePoint::max() : now + kInterval;
}

// libzmq closes the descriptor when it notices. A duplicate cannot be closed, and reused, between the check and the
// shutdown.
void ConnectionLimiter::end(const Connection& connection) {
  const int descriptor = connection.descriptor;
  if (::dup3(descriptor, shut_.get(), O_CLOEXEC) >= 0) {
    if (cookie_of(shut_.get()) == connection.cookie) ::shutdown(shut_.get(), SHUT_RDWR);
    ::dup3(unused_.get(), shut_.get(), O_CLOEXEC);
  }
  closed(descriptor);
}

}  // namespace backplane::zmq
