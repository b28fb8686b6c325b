// SPDX-License-Identifier: Apache-2.0
//
// The server of a TCP store. One thread accepts clients, checks their job, serves requests, and detects lost ranks:
// those of a client whose connection ends, or which is silent for too long, before it withdrew them.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "liveness/exit_handler.hpp"
#include "liveness/membership_table.hpp"
#include "liveness/process_identity.hpp"
#include "log.hpp"
#include "security/connection_limiter.hpp"
#include "security/secret.hpp"
#include "store/clients.hpp"
#include "store/request_handler.hpp"
#include "store/store.hpp"
#include "store/tcp_address.hpp"
#include "store/tcp_session.hpp"
#include "store/wire.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

constexpr int kAcceptBatch = 16;  // then received frames are handled
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr auto kWarningPause = std::chrono::seconds(10);
constexpr int64_t kShutdownNs = 2'000'000'000;
constexpr std::chrono::milliseconds kSendPollPause(1);

class TcpServer final : public TcpStoreServer, private SessionOwner {
 public:
  explicit TcpServer(const TcpStoreOptions& options)
      : options_(options), heartbeat_(options.heartbeat ? *options.heartbeat : environment_heartbeat()) {
    if (options_.job_id.size() > kMaxJobIdSize) {
      fail(BP_INVALID, "the job id has {} bytes; at most {} are allowed", options_.job_id.size(), kMaxJobIdSize);
    }
    listen(acceptor_, options_.host, options_.port);
    port_ = acceptor_.local_endpoint().port();
    address_ = host_port(acceptor_.local_endpoint().address().to_string(), port_);
    if (options_.secret == nullptr && !acceptor_.local_endpoint().address().is_loopback()) {
      log(BP_LOG_WARN,
          "the store at {} has no job secret: any process that reaches this address can join the job; set "
          "BACKPLANE_SECRET_FILE for the launcher and all ranks unless the network is trusted",
          host_port(options_.host, port_));
    }
    accept();
    thread_ = start_quiet_thread("bp-store-server", [this] { run(); });
  }

  ~TcpServer() override {
    announce_shutdown(Deadline::after(kShutdownNs));
    io_.stop();
    thread_.join();
  }
  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;

  uint16_t port() const override { return port_; }

  std::string address() const override { return address_; }

  void wait(Deadline deadline) override { clients_.await_none(deadline, address_); }

 private:
  void run() {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception&) {
        // Out of memory for one client; the others still need the store.
      }
    }
  }

  // Notifies all clients of the shutdown and waits until all queued frames are sent.
  void announce_shutdown(const Deadline& deadline) noexcept {
    try {
      // Shared with the thread, which may run it after the deadline.
      const auto notified = std::make_shared<std::promise<void>>();
      asio::post(io_, [this, notified] {
        for (const auto& [id, session] : sessions_) {
          if (session->accepted()) session->push({Push::Kind::kShutdown, "", -1, ""});
        }
        await_sent(notified);
      });
      notified->get_future().wait_until(deadline.at());
    } catch (const std::exception&) {
      // Out of memory: the clients then take the store for lost.
    }
  }

  void await_sent(const std::shared_ptr<std::promise<void>>& sent) {
    const bool sending = std::any_of(sessions_.begin(), sessions_.end(), [](const auto& entry) {
      return entry.second->accepted() && entry.second->sending();
    });
    if (!sending) return sent->set_value();
    send_timer_.expires_after(kSendPollPause);
    send_timer_.async_wait([this, sent](const ErrorCode&) { await_sent(sent); });
  }

  void accept() {
    acceptor_.async_wait(Tcp::acceptor::wait_read, [this](const ErrorCode& error) {
      if (error) return;
      if (accept_some()) return accept();
      // Out of descriptors: without a pause, the waiting client would keep this thread busy.
      accept_timer_.expires_after(kAcceptPause);
      accept_timer_.async_wait([this](const ErrorCode& stopped) {
        if (!stopped) accept();
      });
    });
  }

  // Accepts waiting connections; false if the process has no resources for them. accept4 sets close-on-exec atomically,
  // in case another thread forks.
  bool accept_some() {
    for (int i = 0; i < kAcceptBatch; ++i) {
      const int fd = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) {
        admit(fd);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return true;
      } else if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) {
        return false;
      }  // the three errors concern one connection that is closed
    }
    return true;
  }

  void admit(int fd) {
    Tcp::socket socket(io_);
    ErrorCode error;
    socket.assign(acceptor_.local_endpoint().protocol(), fd, error);
    if (error) {
      ::close(fd);
      return;
    }
    const auto from = socket.remote_endpoint(error).address();
    if (error) return;  // closed
    const ClientId id = ++last_client_;
    if (const auto victim = limiter_.admit(id, from)) {
      const auto found = sessions_.find(*victim);
      if (found != sessions_.end())
        std::shared_ptr(found->second)->close("it sent no Hello before too many others connected");
    }
    const auto session = std::make_shared<Session>(static_cast<SessionOwner&>(*this), id, std::move(socket));
    sessions_.emplace(id, session);
    session->start();
  }

  const Secret* secret() const override { return options_.secret.get(); }

  Welcome on_hello(Session& session, const Hello& hello) override {
    if (options_.secret != nullptr && !session.proven()) {
      return refuse_unauthenticated("which has no secret",
                                    "has a job secret, this rank has none; give the launcher and all ranks the same "
                                    "BACKPLANE_SECRET_FILE");
    }
    if (hello.version == kSecureVersion) {
      return refuse_unauthenticated("which has a secret",
                                    "has no job secret, this rank has one; give the launcher and all ranks the same "
                                    "BACKPLANE_SECRET_FILE");
    }
    Welcome welcome = check_hello(hello);
    if (welcome.status == BP_OK) {
      limiter_.release(session.id());
      const std::string rank = hello.rank < 0 ? "" : fmt::format("rank {} at ", hello.rank);
      clients_.enter(session.id(), rank + session.remote_address());
    }
    return welcome;
  }

  Welcome on_wrong_secret(Session&) override {
    return refuse_unauthenticated("which has another secret",
                                  "has another job secret than this rank; give the launcher and all ranks the same "
                                  "BACKPLANE_SECRET_FILE");
  }

  // Refuses a client without details of the job. Logs at most once per kWarningPause, because any client can cause it.
  Welcome refuse_unauthenticated(const char* whom, const char* text) {
    const auto now = Clock::now();
    ++refused_;
    if (now >= next_warning_) {
      log(BP_LOG_WARN, "the store at {} refused a client {} ({} such clients since the last warning)",
          host_port(options_.host, port_), whom, std::exchange(refused_, 0));
      next_warning_ = now + kWarningPause;
    }
    return refusal(BP_INVALID, fmt::format("the store at {} {}", host_port(options_.host, port_), text));
  }

  Welcome check_hello(const Hello& hello) const {
    Welcome welcome = compare(hello);
    welcome.server_rank = options_.server_rank;
    welcome.server_identity = identity_;
    welcome.heartbeat = heartbeat_;
    return welcome;
  }

  static Welcome refusal(int32_t status, std::string text) {
    Welcome welcome;
    welcome.status = status;
    welcome.text = std::move(text);
    return welcome;
  }

  Welcome compare(const Hello& hello) const {
    const std::string where = host_port(options_.host, port_);
    if (hello.version != kProtocolVersion) {
      return refusal(BP_INVALID,
                     fmt::format("the store at {} speaks protocol {}, this rank speaks {}; start all ranks with the "
                                 "same version of Backplane",
                                 where, kProtocolVersion, hello.version));
    }
    if (hello.job_id != options_.job_id) {
      return refusal(BP_INVALID,
                     fmt::format("the store at {} belongs to job {}, this rank is of job {}; give each job its own "
                                 "MASTER_PORT and all its ranks the same BACKPLANE_JOB_ID",
                                 where, quoted(options_.job_id), quoted(hello.job_id)));
    }
    if (hello.world_size > 0 && options_.world_size > 0 && hello.world_size != options_.world_size) {
      return refusal(BP_INVALID,
                     fmt::format("the store at {} serves a job of {} ranks, but rank {} was started with a world "
                                 "size of {}; start all ranks with the same one",
                                 where, options_.world_size, hello.rank, hello.world_size));
    }
    if (!options_.closing_key.empty() && requests_.contains(options_.closing_key)) {
      return refusal(BP_AGAIN, fmt::format("the store at {} is about to end", where));
    }
    return {};
  }

  void on_request(Session& session, StoreRequest request) override {
    if (request.operation < Operation::kEnroll || request.operation > Operation::kHeartbeat) {
      return requests_.handle(session.id(), std::move(request));
    }
    if (request.operation == Operation::kHeartbeat) return session.push({Push::Kind::kHeartbeat, "", -1, ""});
    try {
      session.reply(request.id, BP_OK, make_bytes(handle_membership(session.id(), request)));
    } catch (const Error& e) {
      session.reply(request.id, e.status(), make_bytes(e.what()));
    }
  }

  // Changes or reads the members; the reply's payload.
  std::string handle_membership(ClientId client, const StoreRequest& request) {
    const auto& texts = request.texts;
    const auto expect = [&texts](size_t count) {
      if (texts.size() != count) fail(BP_INVALID, "a request has {} arguments instead of {}", texts.size(), count);
    };
    const auto rank = static_cast<int32_t>(request.number);
    if (rank != request.number) fail(BP_INVALID, "{} is not a rank", request.number);
    switch (request.operation) {
      case Operation::kEnroll: {
        expect(2);
        const bool held = members_.enroll(client, texts[0], rank, texts[1]);
        if (held && rank >= 0) clients_.enter(client, fmt::format("rank {} ({})", rank, texts[1]));
        start_watch();
        return held ? "1" : "0";
      }
      case Operation::kWithdraw:
        expect(1);
        members_.withdraw(client, texts[0], rank);
        return {};
      case Operation::kAbsences:
        expect(1);
        return encode_absences(members_.absences(texts[0]));
      default:
        expect(0);
        members_.leave(client);
        return {};
    }
  }

  // Checks the clients for silence while a rank is enrolled.
  void start_watch() {
    if (watching_) return;
    watching_ = true;
    last_tick_ = Clock::now();
    schedule_watch();
  }

  void schedule_watch() {
    watch_timer_.expires_after(std::chrono::nanoseconds(heartbeat_.tick_ns()));
    watch_timer_.async_wait([this](const ErrorCode& stopped) {
      if (!stopped) watch();
    });
  }

  void watch() {
    const auto now = Clock::now();
    // If this process was suspended, the silence may be its own.
    const bool late = now - last_tick_ > std::chrono::nanoseconds(heartbeat_.tick_ns() + heartbeat_.interval_ns);
    last_tick_ = now;
    for (const auto& [id, session] : sessions_) {
      if (late || session->has_unread()) session->touch(now);
      if (now - session->last_activity() > std::chrono::nanoseconds(heartbeat_.limit_ns) && members_.holds(id)) {
        members_.lose(id, silence_text(heartbeat_));  // it stays connected and gets the notice when it resumes
      }
    }
    watching_ = members_.entries() > 0;
    if (watching_) schedule_watch();
  }

  void on_closed(Session& session) override {
    limiter_.release(session.id());
    clients_.leave(session.id());
    requests_.forget(session.id());
    members_.lose(session.id(), session.why_closed());
    members_.forget(session.id());
    sessions_.erase(session.id());
  }

  void push(ClientId client, const Push& push) {
    const auto found = sessions_.find(client);
    if (found != sessions_.end()) found->second->push(push);
  }

  void deliver(OutgoingReply reply) {
    const auto found = sessions_.find(reply.client);
    if (found != sessions_.end()) found->second->reply(reply.request, reply.status, std::move(reply.payload));
  }

  using Clock = std::chrono::steady_clock;

  const TcpStoreOptions options_;
  const Heartbeat heartbeat_;
  const std::string identity_ = process_identity();
  uint16_t port_ = 0;
  std::string address_;
  Clients clients_;
  // Only for the thread once it runs. The io_context is destroyed last, with the handlers that hold sessions.
  asio::io_context io_{1};
  Tcp::acceptor acceptor_{io_};
  asio::steady_timer accept_timer_{io_};
  asio::steady_timer send_timer_{io_};
  RequestHandler requests_{[this](OutgoingReply reply) { deliver(std::move(reply)); }};
  MembershipTable members_{[this](ClientId client, const std::string& scope, const Loss& loss) {
    push(client, {Push::Kind::kNotice, scope, loss.rank, loss.text});
  }};
  asio::steady_timer watch_timer_{io_};
  bool watching_ = false;
  Clock::time_point last_tick_ = Clock::now();
  std::map<ClientId, std::shared_ptr<Session>> sessions_;
  ClientId last_client_ = 0;
  const size_t max_pending_connections_ = max_pending_connections();
  ConnectionLimiter limiter_{max_pending_connections_, max_pending_connections_ / 2};
  size_t refused_ = 0;  // since the last warning
  Clock::time_point next_warning_ = Clock::time_point::min();
  std::thread thread_;
  const ExitHandler exit_handler_{ExitHandler::Order::kServer,
                                  [this](const Deadline& deadline) { announce_shutdown(deadline); }};
};

}  // namespace

std::unique_ptr<TcpStoreServer> make_tcp_store_server(const TcpStoreOptions& options) {
  return std::make_unique<TcpServer>(options);
}

}  // namespace backplane::core
