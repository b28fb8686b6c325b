// SPDX-License-Identifier: Apache-2.0
//
// The thread that reads, writes, accepts and closes, from the group's start to its end.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

constexpr size_t kMaxPending = 128;  // unknown connections at a time
constexpr std::chrono::milliseconds kAcceptPause(50);

int milliseconds_until(TimePoint moment) {
  if (moment == TimePoint::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(moment - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace

void Specimen::wake() { (void)::eventfd_write(wake_, 1); }

void Specimen::progress() {
  Lock lock(mutex_);
  while (!stopping_) serve(lock);
}

void Specimen::serve(Lock& lock) {
  begin_held();
  close_connections();
  std::vector<pollfd> polled = {{wake_, POLLIN, 0}};
  std::vector<int32_t> ranks;
  TimePoint due = TimePoint::max();
  const bool paused = Clock::now() < accept_again_;
  if (paused) due = accept_again_;
  polled.push_back({paused ? -1 : listener_, POLLIN, 0});
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    const Peer& each = peer(rank);
    if (each.fd < 0) continue;
    ranks.push_back(rank);
    polled.push_back({each.fd, static_cast<short>(each.outgoing.empty() ? POLLIN : POLLIN | POLLOUT), 0});
  }
  for (const PendingConnection& each : pending_) {
    due = std::min(due, each.deadline);
    polled.push_back({each.fd, POLLIN, 0});
  }
  lock.unlock();
  const int ready = ::poll(polled.data(), polled.size(), milliseconds_until(due));
  lock.lock();
  if (ready <= 0 && pending_.empty()) return;
  if (polled[0].revents != 0) {
    eventfd_t count = 0;
    (void)::eventfd_read(wake_, &count);
  }
  size_t at = 2;
  for (const int32_t rank : ranks) {
    const short events = polled[at++].revents;
    if (events == 0) continue;
    if ((events & POLLOUT) != 0) flush(rank);
    if ((events & ~POLLOUT) != 0) read_peer(rank);
  }
  for (auto pending = pending_.begin(); pending != pending_.end() && at < polled.size();) {
    const auto here = pending++;
    const bool spoke = polled[at++].revents != 0;
    if (spoke ? hear(*here) : here->deadline > Clock::now()) continue;
    if (here->fd >= 0) ::close(here->fd);
    pending_.erase(here);
  }
  if (polled[1].revents != 0) accept_connections();
}

void Specimen::accept_connections() {
  for (int turn = 0; turn < 64; ++turn) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Out of descriptors: retrying at once would spin.
      if (errno != EAGAIN && errno != EWOULDBLOCK) accept_again_ = Clock::now() + kAcceptPause;
      return;
    }
    if (pending_.size() >= kMaxPending) {
      ::close(pending_.front().fd);
      pending_.pop_front();
    }
    pending_.push_back({fd, {}, 0, Clock::now() + settings_->handshake});
  }
}

bool Specimen::hear(PendingConnection& pending) {
  auto* target = reinterpret_cast<std::byte*>(&pending.hello) + pending.have;
  const ssize_t size = ::recv(pending.fd, target, sizeof pending.hello - pending.have, MSG_DONTWAIT);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (size == 0) return false;
  pending.have += static_cast<size_t>(size);
  if (pending.have < sizeof pending.hello) return true;
  bool trusted = false;
  const Welcome answer{kMagic, judge(pending.hello, trusted)};
  if (!trusted) return false;  // unauthenticated connections get no answer
  const bool told = ::send(pending.fd, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof answer;
  if (!told || answer.refusal != kWelcome) return false;
  adopt(pending.hello.rank, pending.fd);
  pending.fd = -1;
  return false;
}

// The key authenticates a rank of this job; the other fields decide whether it may be the rank that it claims.
uint32_t Specimen::judge(const Hello& hello, bool& trusted) {
  trusted = hello.magic == kMagic && hello.key == key_ && hello.target == rank_;
  if (!trusted) return kRankTaken;
  if (hello.world_size != world_size_) return kOtherSize;
  if (hello.rank <= rank_ || hello.rank >= world_size_) return kRankTaken;
  if (aborted_ || leaving_) return kLeft;
  return peer(hello.rank).known ? kRankTaken : kWelcome;
}

void Specimen::adopt(int32_t rank, int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  peer(rank).fd = fd;
  peer(rank).known = true;
  changed_.notify_all();
  wake();
}

void Specimen::close_connections() {
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (aborted_ && peer(rank).fd >= 0) break_off(rank, "this rank's group was aborted");
    if (!peer(rank).broken || peer(rank).fd < 0) continue;
    ::close(peer(rank).fd);
    peer(rank).fd = -1;
  }
}

// All sent messages have arrived once the other ranks have answered the goodbye.
void Specimen::send_goodbyes(Lock& lock) {
  leaving_ = true;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    if (peer(rank).fd < 0 || peer(rank).left) continue;
    peer(rank).goodbye = true;
    enqueue(rank, {kGoodbye, 0, 0, 0, 0, 0});
  }
  const TimePoint end = Clock::now() + settings_->linger;
  changed_.wait_until(lock, end, [this] {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& each) {
      return each.fd < 0 || each.broken || (each.outgoing.empty() && (each.goodbye_acknowledged || !each.goodbye));
    });
  });
}

}  // namespace backplane::specimen
