// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace backplane::nccl {
namespace {

// So many that came from one peer are taken before others have their turn; those of a batch mostly come together.
constexpr int kMostFrames = 64;

}  // namespace

Wire::Wire(std::vector<sdk::Descriptor> sockets, Handlers handlers)
    : handlers_(std::move(handlers)), sockets_(std::move(sockets)), links_(sockets_.size()) {}

int32_t Wire::lost() const {
  for (size_t peer = 0; peer < sockets_.size(); ++peer) {
    char next = 0;
    if (!sockets_[peer]) continue;
    const ssize_t got = ::recv(sockets_[peer].get(), &next, 1, MSG_PEEK);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return static_cast<int32_t>(peer);
  }
  return -1;
}

void Wire::send(int32_t peer, const Frame& frame) {
  const std::lock_guard lock(mutex_);
  links_[static_cast<size_t>(peer)].out.push_back(frame);
}

bool Wire::progress(sdk::Poller::Sleep& sleep) {
  bool busy = false;
  for (size_t peer = 0; peer < sockets_.size(); ++peer) {
    if (sockets_[peer]) busy |= write_to(peer);
    for (int i = 0; i < kMostFrames && sockets_[peer] && read_from(peer); ++i) busy = true;
    if (sockets_[peer]) {
      sleep.watch(sockets_[peer].get(), static_cast<short>(has_to_write(peer) ? POLLIN | POLLOUT : POLLIN));
    }
  }
  return busy;
}

bool Wire::read_from(size_t peer) {
  Link& link = links_[peer];
  const ssize_t got = ::recv(sockets_[peer].get(), link.in.data() + link.read, link.in.size() - link.read, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    end(peer);
    return true;
  }
  link.read += static_cast<size_t>(got);
  if (link.read < link.in.size()) return true;
  Frame frame;
  std::memcpy(&frame, link.in.data(), sizeof frame);
  link.read = 0;
  handlers_.arrived(static_cast<int32_t>(peer), frame);
  return true;
}

bool Wire::write_to(size_t peer) {
  Link& link = links_[peer];
  const std::lock_guard lock(mutex_);
  bool moved = false;
  while (!link.out.empty()) {
    const auto* const bytes = reinterpret_cast<const char*>(&link.out.front());
    const ssize_t sent = ::send(sockets_[peer].get(), bytes + link.written, sizeof(Frame) - link.written, MSG_NOSIGNAL);
    if (sent < 0) return moved;  // full, or closed, which the next read reports
    moved = true;
    link.written += static_cast<size_t>(sent);
    if (link.written < sizeof(Frame)) return true;
    link.written = 0;
    link.out.pop_front();
  }
  return moved;
}

bool Wire::has_to_write(size_t peer) {
  const std::lock_guard lock(mutex_);
  return !links_[peer].out.empty();
}

void Wire::end(size_t peer) {
  sockets_[peer].reset();
  handlers_.ended(static_cast<int32_t>(peer));
}

void Wire::cut() {
  for (sdk::Descriptor& socket : sockets_) socket.reset();
}

void Wire::flush(int64_t timeout_ns) {
  const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
  for (size_t peer = 0; peer < sockets_.size(); ++peer) {
    while (sockets_[peer] && has_to_write(peer) && !deadline.passed()) {
      pollfd item = {sockets_[peer].get(), POLLOUT, 0};
      ::poll(&item, 1, 10);
      if (!write_to(peer) && (item.revents & (POLLERR | POLLHUP)) != 0) break;
    }
  }
}

}  // namespace backplane::nccl
