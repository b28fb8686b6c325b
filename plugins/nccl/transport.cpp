// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace backplane::nccl {
namespace {

// Frames read from one peer before the next peer is served. The frames of a batch mostly arrive together.
constexpr int kMaxFrames = 64;

}  // namespace

Transport::Transport(std::vector<sdk::Descriptor> sockets, Handlers handlers)
    : handlers_(std::move(handlers)), sockets_(std::move(sockets)), links_(sockets_.size()) {}

int32_t Transport::disconnected() const {
  for (size_t peer = 0; peer < sockets_.size(); ++peer) {
    char next = 0;
    if (!sockets_[peer]) continue;
    const ssize_t got = ::recv(sockets_[peer].get(), &next, 1, MSG_PEEK);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return static_cast<int32_t>(peer);
  }
  return -1;
}

void Transport::send(int32_t peer, const Frame& frame) { links_[static_cast<size_t>(peer)].out.push_back(frame); }

bool Transport::progress(sdk::Poller::Sleep& sleep) {
  bool moved = false;
  for (size_t peer = 0; peer < sockets_.size(); ++peer) {
    if (sockets_[peer]) moved |= write_to(peer);
    for (int i = 0; i < kMaxFrames && sockets_[peer] && read_from(peer); ++i) moved = true;
    if (sockets_[peer]) {
      sleep.watch(sockets_[peer].get(), static_cast<short>(links_[peer].out.empty() ? POLLIN : POLLIN | POLLOUT));
    }
  }
  return moved;
}

bool Transport::read_from(size_t peer) {
  Link& link = links_[peer];
  const ssize_t got = ::recv(sockets_[peer].get(), link.in.data() + link.read, link.in.size() - link.read, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    sockets_[peer].reset();
    handlers_.on_disconnect(static_cast<int32_t>(peer));
    return true;
  }
  link.read += static_cast<size_t>(got);
  if (link.read < link.in.size()) return true;
  Frame frame;
  std::memcpy(&frame, link.in.data(), sizeof frame);
  link.read = 0;
  handlers_.on_frame(static_cast<int32_t>(peer), frame);
  return true;
}

bool Transport::write_to(size_t peer) {
  Link& link = links_[peer];
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

void Transport::disconnect() {
  for (sdk::Descriptor& socket : sockets_) socket.reset();
}

void Transport::flush(int64_t timeout_ns) {
  const sdk::Deadline deadline = sdk::Deadline::after(timeout_ns);
  for (size_t peer = 0; peer < sockets_.size(); ++peer) {
    while (sockets_[peer] && !links_[peer].out.empty() && !deadline.passed()) {
      pollfd item = {sockets_[peer].get(), POLLOUT, 0};
      ::poll(&item, 1, 10);
      if (!write_to(peer) && (item.revents & (POLLERR | POLLHUP)) != 0) break;
    }
  }
}

}  // namespace backplane::nccl
