// SPDX-License-Identifier: Apache-2.0
#include "handshake.hpp"

#include <gloo/common/error.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

namespace backplane::gloo {
Token make_token() {
  Token token;
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    throw sdk::Failure(BP_RESOURCE, "gloo: cannot get random bytes (getrandom)", -1, errno);
  }
  return token;
}

void PendingConnections::add(const void* listener, int socket) {
  const std::lock_guard lock(mutex_);
  while (!entries_.empty() && entries_.size() >= most_) {
    std::unordered_map<const void*, size_t> counts;
    for (const Entry& entry : entries_) ++counts[entry.listener];
    const auto has_fewer = [](const auto& left, const auto& right) { return left.second < right.second; };
    const void* const most = std::max_element(counts.begin(), counts.end(), has_fewer)->first;
    const auto oldest =
        std::find_if(entries_.begin(), entries_.end(), [most](const Entry& entry) { return entry.listener == most; });
    ::shutdown(oldest->socket, SHUT_RDWR);
    entries_.erase(oldest);
  }
  entries_.push_back({listener, socket});
}

void PendingConnections::remove(int socket) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [socket](const Entry& entry) { return entry.socket == socket; });
}

base::Descriptor Admission::admit(int listener, int epoll, ::gloo::transport::tcp::Handler* handler) {
  do {
    // Before each accept, which may shut down a candidate.
    if (base::Descriptor peer = read_all(epoll)) return peer;
  } while (accept_one(listener, epoll, handler));
  return {};
}

// Returns the connection of the peer, if one of the candidates is that.
base::Descriptor Admission::read_all(int epoll) {
  for (auto candidate = candidates_.begin(); candidate != candidates_.end();) {
    const Result result = read(*candidate);
    if (result == Result::kIncomplete) {
      ++candidate;
      continue;
    }
    base::Descriptor socket = std::move(candidate->socket);
    candidate = candidates_.erase(candidate);
    if (result == Result::kPeer) {
      all_.remove(socket.get());
      close(epoll);
      return socket;
    }
    has_refused_ = true;
    close(epoll, socket);
  }
  return {};
}

void Admission::close(int epoll) noexcept {
  for (Candidate& candidate : candidates_) close(epoll, candidate.socket);
  candidates_.clear();
}

void Admission::close(int epoll, base::Descriptor& socket) noexcept {
  if (!socket) return;
  all_.remove(socket.get());
  epoll_ctl(epoll, EPOLL_CTL_DEL, socket.get(), nullptr);  // a forked process may hold the socket as well
  socket.reset();
}

// Returns false if there is none.
bool Admission::accept_one(int listener, int epoll, ::gloo::transport::tcp::Handler* handler) {
  for (;;) {
    base::Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      const bool is_own_problem = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS ||
                                  errno == EBADF || errno == EINVAL || errno == ENOTSOCK;
      if (is_own_problem) throw ::gloo::IoException(std::string("accept: ") + std::strerror(errno));
      continue;  // the connection has ended already
    }
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.ptr = handler;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, socket.get(), &event) != 0) {
      throw ::gloo::IoException(std::string("epoll_ctl: ") + std::strerror(errno));
    }
    candidates_.push_back({std::move(socket), {}, 0});
    all_.add(this, candidates_.back().socket.get());
    return true;
  }
}

Admission::Result Admission::read(Candidate& candidate) const {
  while (candidate.arrived < sizeof(Hello)) {
    char* const to = reinterpret_cast<char*>(&candidate.hello) + candidate.arrived;
    const ssize_t got = ::recv(candidate.socket.get(), to, sizeof(Hello) - candidate.arrived, 0);
    if (got > 0) {
      candidate.arrived += static_cast<size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Result::kIncomplete;
    } else if (got == 0 || errno != EINTR) {
      return Result::kRefused;
    }
  }
  const bool is_peer = candidate.hello.token == expected_.token && candidate.hello.rank == expected_.rank;
  return is_peer ? Result::kPeer : Result::kRefused;
}

}  // namespace backplane::gloo
