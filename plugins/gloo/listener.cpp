// SPDX-License-Identifier: Apache-2.0
#include "listener.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "backplane/base/pending_connections.hpp"
#include "pair.hpp"
#include "tcp_device.hpp"
#include "transport.hpp"

namespace backplane::gloo {
namespace {

[[noreturn]] void throw_cannot_listen(const char* call) {
  const int error = errno;
  throw sdk::Failure(BP_RESOURCE, std::string("gloo cannot listen: ") + call + ": " + std::strerror(error), -1, error);
}

bool is_own_problem(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS; }

}  // namespace

// At least one candidate per other rank: the ranks may all connect at once.
Listener::Listener(Context& owner, ::gloo::transport::tcp::Device& device, const ::gloo::transport::tcp::attr& where,
                   const Token& token)
    : owner_(owner),
      device_(device),
      token_(token),
      most_(std::max(base::max_pending_connections(), static_cast<size_t>(owner.size - 1))),
      socket_(::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  if (!socket_) throw_cannot_listen("socket");
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&where.ai_addr),
             static_cast<socklen_t>(where.ai_addrlen)) != 0) {
    throw_cannot_listen("bind");
  }
  if (::listen(socket_.get(), SOMAXCONN) != 0) throw_cannot_listen("listen");
  socklen_t size = sizeof(address_);
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address_), &size) != 0) {
    throw_cannot_listen("getsockname");
  }
  // Edge-triggered: without descriptors nothing can be accepted, and gloo's thread must not spin.
  device_.registerDescriptor(socket_.get(), static_cast<int>(EPOLLIN | EPOLLET), this);
}

Listener::~Listener() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    for (const Candidate& candidate : candidates_) unregister(candidate.socket);
    candidates_.clear();
  }
  device_.unregisterDescriptor(socket_.get(), this);
  const std::lock_guard after_gloos_thread(mutex_);  // ThreadSanitizer cannot see the order inside the library
}

// A forked process may hold the socket as well, so that closing it would not remove it.
void Listener::unregister(const base::Descriptor& socket) noexcept {
  epoll_ctl(epoll_descriptor(device_), EPOLL_CTL_DEL, socket.get(), nullptr);
}

void Listener::handleEvents(int) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  do {
    read_all();  // before each accept, which may close a candidate
  } while (accept_one());
}

// Returns false if there is none.
bool Listener::accept_one() {
  base::Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    if (is_own_problem(errno)) {
      owner_.health().host.log(exhausted_, BP_LOG_WARN,
                               "gloo: rank " + std::to_string(owner_.rank) + " cannot accept a connection (" +
                                   std::strerror(errno) + "); raise this process's limit (ulimit -n)");
      return false;
    }
    return errno == EINTR || errno == ECONNABORTED || errno == EPROTO;
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = static_cast<::gloo::transport::tcp::Handler*>(this);
  if (epoll_ctl(epoll_descriptor(device_), EPOLL_CTL_ADD, socket.get(), &event) != 0) return true;
  if (candidates_.size() >= most_) {
    unregister(candidates_.front().socket);
    candidates_.erase(candidates_.begin());
  }
  candidates_.push_back({std::move(socket), {}, 0});
  return true;
}

void Listener::read_all() {
  for (auto candidate = candidates_.begin(); candidate != candidates_.end();) {
    const Result result = read(*candidate);
    if (result == Result::kIncomplete) {
      ++candidate;
      continue;
    }
    base::Descriptor socket = std::move(candidate->socket);
    const int rank = candidate->hello.rank;
    candidate = candidates_.erase(candidate);
    unregister(socket);
    if (result == Result::kRank) {
      owner_.pair(rank).accept(std::move(socket));
    } else if (result == Result::kRefused) {
      owner_.health().host.log(refused_, BP_LOG_WARN,
                               "gloo: rank " + std::to_string(owner_.rank) +
                                   " closed a connection of a process that is no rank of this group");
    }
  }
}

Listener::Result Listener::read(Candidate& candidate) const {
  while (candidate.arrived < sizeof(Hello)) {
    char* const to = reinterpret_cast<char*>(&candidate.hello) + candidate.arrived;
    const ssize_t got = ::recv(candidate.socket.get(), to, sizeof(Hello) - candidate.arrived, 0);
    if (got > 0) {
      candidate.arrived += static_cast<size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Result::kIncomplete;
    } else if (got == 0 || errno != EINTR) {
      return candidate.arrived == 0 ? Result::kEnded : Result::kRefused;
    }
  }
  const Hello& hello = candidate.hello;
  const bool is_rank =
      hello.token == token_ && hello.rank >= 0 && hello.rank < owner_.size && hello.rank != owner_.rank;
  return is_rank ? Result::kRank : Result::kRefused;
}

}  // namespace backplane::gloo
