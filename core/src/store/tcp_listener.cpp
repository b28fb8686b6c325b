// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_listener.hpp"

#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "log.hpp"

namespace backplane::core {
namespace {

constexpr int kAcceptBatch = 16;  // then received frames are handled
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

Listener::Listener(boost::asio::io_context& io, const std::string& host, uint16_t port, const Deadline& resolve_until,
                   std::function<void(Tcp::socket)> connected)
    : connected_(std::move(connected)), acceptor_(io), pause_timer_(io) {
  listen(acceptor_, host, port, resolve_until);
  endpoint_ = acceptor_.local_endpoint();
  accept();
}

Listener::~Listener() { ::shutdown(acceptor_.native_handle(), SHUT_RDWR); }

void Listener::accept() {
  acceptor_.async_wait(Tcp::acceptor::wait_read, [this](const ErrorCode& error) {
    if (error) return;
    try {
      if (accept_some()) return accept();
    } catch (const std::exception&) {
      // Out of memory for one client; others still need to connect.
    }
    // Out of descriptors or memory: without a pause, the waiting client would keep this thread busy.
    pause_timer_.expires_after(kAcceptPause);
    pause_timer_.async_wait([this](const ErrorCode& stopped) {
      if (!stopped) accept();
    });
  });
}

// Accepts waiting connections; false if the process has no resources for them. accept4 sets close-on-exec atomically,
// in case another thread forks.
bool Listener::accept_some() {
  for (int i = 0; i < kAcceptBatch; ++i) {
    base::Descriptor fd(::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd) {
      take(std::move(fd));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) {
      report(errno);
      return false;
    }  // the three errors concern one connection that is closed
  }
  return true;
}

// The clients see a connection without a reply.
void Listener::report(int error) {
  const std::string where = host_port(endpoint_.address().to_string(), endpoint_.port());
  rlimit limit = {};
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    log(warnings_, BP_LOG_WARN,
        "the store at {} has no descriptor left for a client that connects; raise the limit of this process (ulimit "
        "-n, now {}), which needs one for each rank",
        where, limit.rlim_cur);
  } else {
    log(warnings_, BP_LOG_WARN, "the store at {} cannot accept a client: {}; it tries again", where,
        std::generic_category().message(error));
  }
}

void Listener::take(base::Descriptor fd) {
  Tcp::socket socket(acceptor_.get_executor());
  ErrorCode error;
  socket.assign(endpoint_.protocol(), fd.get(), error);
  if (error) return;
  fd.release();
  set_options(socket);
  connected_(std::move(socket));
}

}  // namespace backplane::core
