// SPDX-License-Identifier: Apache-2.0
//
// The server of a TCP store: one thread, which accepts clients, compares jobs and serves the board.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "store/board.hpp"
#include "store/store.hpp"
#include "store/tcp_address.hpp"
#include "store/tcp_session.hpp"
#include "store/waiting.hpp"
#include "store/wire.hpp"
#include "store/wording.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

constexpr size_t kMaxStrangers = 1024;  // connections that have not said Hello
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

class TcpServer final : public TcpStoreServer, private SessionOwner {
 public:
  explicit TcpServer(const TcpStoreOptions& options) : options_(options) {
    if (options_.job_id.size() > kMaxJobIdSize) {
      fail(BP_INVALID, "the job id has {} bytes; at most {} are allowed", options_.job_id.size(), kMaxJobIdSize);
    }
    listen(acceptor_, options_.host, options_.port);
    port_ = acceptor_.local_endpoint().port();
    accept();
    thread_ = start_quiet_thread("bp-store-server", [this] { run(); });
  }

  ~TcpServer() override {
    io_.stop();
    thread_.join();
  }
  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;

  uint16_t port() const override { return port_; }

 private:
  void run() {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception&) {
        // Out of memory while serving one client; the others still need the store.
      }
    }
  }

  void accept() {
    acceptor_.async_wait(Tcp::acceptor::wait_read, [this](const ErrorCode& error) {
      if (error) return;
      if (accept_all()) return accept();
      // Out of descriptors or the like: without a pause the waiting client would keep this thread busy.
      accept_timer_.expires_after(kAcceptPause);
      accept_timer_.async_wait([this](const ErrorCode& stopped) {
        if (!stopped) accept();
      });
    });
  }

  // Takes in who is waiting; false if that is not possible now. accept4 sets close-on-exec without a gap in which
  // another thread could fork.
  bool accept_all() {
    for (;;) {
      const int fd = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) {
        admit(fd);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return true;
      } else if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) {
        return false;
      }  // those three are about one connection that is gone already
    }
  }

  void admit(int fd) {
    Tcp::socket socket(io_);
    ErrorCode error;
    socket.assign(acceptor_.local_endpoint().protocol(), fd, error);
    if (error || strangers_ >= kMaxStrangers) {
      if (error) ::close(fd);
      return;
    }
    ++strangers_;
    const ClientId id = ++last_client_;
    const auto session = std::make_shared<Session>(static_cast<SessionOwner&>(*this), id, std::move(socket));
    sessions_.emplace(id, session);
    session->start();
  }

  Welcome on_hello(Session&, const Hello& hello) override {
    Welcome welcome = judge(hello);
    if (welcome.status == BP_OK) --strangers_;
    return welcome;
  }

  // Who authenticates clients does it here.
  Welcome judge(const Hello& hello) const {
    const std::string where = host_port(options_.host, port_);
    if (hello.version != kProtocolVersion) {
      return {BP_INVALID,
              fmt::format("the store at {} speaks protocol {}, this rank speaks {}; start all ranks with the "
                          "same version of Backplane",
                          where, kProtocolVersion, hello.version)};
    }
    if (hello.job_id != options_.job_id) {
      return {BP_INVALID,
              fmt::format("the store at {} belongs to job {}, this rank is of job {}; give each job another "
                          "MASTER_PORT and all its ranks the same BACKPLANE_JOB_ID",
                          where, quoted(options_.job_id), quoted(hello.job_id))};
    }
    if (hello.world_size > 0 && options_.world_size > 0 && hello.world_size != options_.world_size) {
      return {BP_INVALID, fmt::format("the store at {} serves a job of {} ranks, but rank {} was started with a world "
                                      "size of {}; start all ranks with the same one",
                                      where, options_.world_size, hello.rank, hello.world_size)};
    }
    if (!options_.closing_key.empty() && board_.contains(options_.closing_key)) {
      return {BP_AGAIN, fmt::format("the store at {} is about to end", where)};
    }
    return {};
  }

  void on_request(Session& session, Request request) override { board_.handle(session.id(), std::move(request)); }

  // Who watches for the death of ranks does it here.
  void on_closed(Session& session) override {
    if (!session.greeted()) --strangers_;
    board_.forget(session.id());
    sessions_.erase(session.id());
  }

  void deliver(Answer answer) {
    const auto found = sessions_.find(answer.client);
    if (found != sessions_.end()) found->second->answer(answer.request, answer.status, std::move(answer.payload));
  }

  const TcpStoreOptions options_;
  uint16_t port_ = 0;
  // Only for the thread, once it runs. The io_context is destroyed last, with the handlers that hold sessions.
  asio::io_context io_{1};
  Tcp::acceptor acceptor_{io_};
  asio::steady_timer accept_timer_{io_};
  Board board_{[this](Answer answer) { deliver(std::move(answer)); }};
  std::map<ClientId, std::shared_ptr<Session>> sessions_;
  ClientId last_client_ = 0;
  size_t strangers_ = 0;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<TcpStoreServer> make_tcp_store_server(const TcpStoreOptions& options) {
  return std::make_unique<TcpServer>(options);
}

}  // namespace backplane::core
