// SPDX-License-Identifier: Apache-2.0
#include "link.hpp"

#include <gloo/common/error.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "tcp_device.hpp"

namespace backplane::gloo {

size_t Link::receive(void* to, size_t bytes) {
  for (;;) {
    const ssize_t got = ::recv(pair_.fd_, to, bytes, 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return 0;
    has_ended_ = true;
    if (on_loop_) {
      close(got == 0 ? std::string("the connection was closed")
                     : std::string("cannot receive: ") + std::strerror(errno));
    }
    return 0;
  }
}

std::optional<size_t> Link::send(std::span<iovec> pieces) {
  msghdr message = {};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  for (;;) {
    const ssize_t written = ::sendmsg(pair_.fd_, &message, MSG_NOSIGNAL);
    if (written >= 0) return static_cast<size_t>(written);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && on_loop_) close(std::string("cannot send: ") + std::strerror(errno));
    return std::nullopt;
  }
}

void Link::expect_events(uint32_t events, int change) noexcept {
  epoll_event event = {};
  event.events = events;
  event.data.ptr = static_cast<::gloo::transport::tcp::Handler*>(&pair_);
  epoll_ctl(epoll_descriptor(*pair_.device_), change, pair_.fd_, &event);
}

void Link::end(const char* why) noexcept {
  if (pair_.state_ == GlooPair::CLOSED || pair_.fd_ < 0) return;
  if (end_reason_ == nullptr) end_reason_ = why;
  ::shutdown(pair_.fd_, SHUT_RDWR);
}

void Link::check_not_ended() const {
  if (end_reason_ != nullptr) throw ::gloo::IoException(end_reason_);
}

void Link::close(const std::string& seen) { pair_.signalException(end_reason_ == nullptr ? seen : end_reason_); }

}  // namespace backplane::gloo
