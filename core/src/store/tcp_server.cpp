// SPDX-License-Identifier: Apache-2.0
//
// The server of a TCP store: one thread, which accepts clients, compares jobs, serves the board, and tells the ranks of
// a job of each other's death: that of a client whose connection ends, or which is silent for too long, without having
// withdrawn its ranks.
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
#include "store/board.hpp"
#include "store/clients.hpp"
#include "store/store.hpp"
#include "store/tcp_address.hpp"
#include "store/tcp_session.hpp"
#include "store/wire.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

constexpr int kAcceptBatch = 16;  // then those who came are listened to
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr auto kWarningPause = std::chrono::seconds(10);
constexpr int64_t kFarewellNs = 2'000'000'000;
constexpr std::chrono::milliseconds kPartPause(1);

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
          "the store at {} has no job secret: whoever reaches that address can take part in the job; set "
          "BACKPLANE_SECRET_FILE for the launcher and all ranks unless the network is trusted",
          host_port(options_.host, port_));
    }
    accept();
    thread_ = start_quiet_thread("bp-store-server", [this] { run(); });
  }

  ~TcpServer() override {
    part(Deadline::after(kFarewellNs));
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
        // Out of memory while serving one client; the others still need the store.
      }
    }
  }

  // Tells all clients that this server ends in peace, and waits until that has left, behind what was on its way.
  void part(const Deadline& deadline) noexcept {
    try {
      // Shared with the thread, which may come to it only after the deadline.
      const auto said = std::make_shared<std::promise<void>>();
      asio::post(io_, [this, said] {
        for (const auto& [id, session] : sessions_) {
          if (session->greeted()) session->push({Push::Kind::kFarewell, "", -1, ""});
        }
        await_sent(said);
      });
      said->get_future().wait_until(deadline.at());
    } catch (const std::exception&) {
      // Out of memory: then the clients take the store for lost, which is not far from the truth.
    }
  }

  void await_sent(const std::shared_ptr<std::promise<void>>& sent) {
    const bool sending = std::any_of(sessions_.begin(), sessions_.end(), [](const auto& entry) {
      return entry.second->greeted() && entry.second->sending();
    });
    if (!sending) return sent->set_value();
    part_timer_.expires_after(kPartPause);
    part_timer_.async_wait([this, sent](const ErrorCode&) { await_sent(sent); });
  }

  void accept() {
    acceptor_.async_wait(Tcp::acceptor::wait_read, [this](const ErrorCode& error) {
      if (error) return;
      if (accept_some()) return accept();
      // Out of descriptors or the like: without a pause the waiting client would keep this thread busy.
      accept_timer_.expires_after(kAcceptPause);
      accept_timer_.async_wait([this](const ErrorCode& stopped) {
        if (!stopped) accept();
      });
    });
  }

  // Takes in who is waiting; false if that is not possible now. accept4 sets close-on-exec without a gap in which
  // another thread could fork.
  bool accept_some() {
    for (int i = 0; i < kAcceptBatch; ++i) {
      const int fd = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) {
        admit(fd);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return true;
      } else if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) {
        return false;
      }  // those three are about one connection that is gone already
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
    if (error) return;  // gone already
    const ClientId id = ++last_client_;
    if (const auto displaced = limiter_.admit(id, from)) {
      const auto found = sessions_.find(*displaced);
      if (found != sessions_.end()) std::shared_ptr(found->second)->close("others came before it said who it is");
    }
    const auto session = std::make_shared<Session>(static_cast<SessionOwner&>(*this), id, std::move(socket));
    sessions_.emplace(id, session);
    session->start();
  }

  const Secret* secret() const override { return options_.secret.get(); }

  Welcome on_hello(Session& session, const Hello& hello) override {
    if (options_.secret != nullptr && !session.proven()) {
      return turn_away("which has no secret",
                       "has a job secret, this rank has none; give the launcher and all ranks the same "
                       "BACKPLANE_SECRET_FILE");
    }
    if (hello.version == kSecureVersion) {
      return turn_away("which has a secret",
                       "has no job secret, this rank has one; give the launcher and all ranks the same "
                       "BACKPLANE_SECRET_FILE");
    }
    Welcome welcome = judge(hello);
    if (welcome.status == BP_OK) {
      limiter_.leave(session.id());
      const std::string rank = hello.rank < 0 ? "" : fmt::format("rank {} at ", hello.rank);
      clients_.enter(session.id(), rank + session.remote_address());
    }
    return welcome;
  }

  Welcome on_wrong_secret(Session&) override {
    return turn_away("which has another secret",
                     "has another job secret than this rank; give the launcher and all ranks the same "
                     "BACKPLANE_SECRET_FILE");
  }

  // For one who is to learn nothing of the job. The log says it once in a while: anybody may cause it.
  Welcome turn_away(const char* whom, const char* text) {
    const auto now = Clock::now();
    ++turned_away_;
    if (now >= next_warning_) {
      log(BP_LOG_WARN, "the store at {} turned away a client {} ({} such clients since it last said so)",
          host_port(options_.host, port_), whom, std::exchange(turned_away_, 0));
      next_warning_ = now + kWarningPause;
    }
    return refusal(BP_INVALID, fmt::format("the store at {} {}", host_port(options_.host, port_), text));
  }

  Welcome judge(const Hello& hello) const {
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
                     fmt::format("the store at {} belongs to job {}, this rank is of job {}; give each job another "
                                 "MASTER_PORT and all its ranks the same BACKPLANE_JOB_ID",
                                 where, quoted(options_.job_id), quoted(hello.job_id)));
    }
    if (hello.world_size > 0 && options_.world_size > 0 && hello.world_size != options_.world_size) {
      return refusal(BP_INVALID,
                     fmt::format("the store at {} serves a job of {} ranks, but rank {} was started with a world "
                                 "size of {}; start all ranks with the same one",
                                 where, options_.world_size, hello.rank, hello.world_size));
    }
    if (!options_.closing_key.empty() && board_.contains(options_.closing_key)) {
      return refusal(BP_AGAIN, fmt::format("the store at {} is about to end", where));
    }
    return {};
  }

  void on_request(Session& session, StoreRequest request) override {
    if (request.operation < Operation::kEnroll || request.operation > Operation::kHeartbeat) {
      return board_.handle(session.id(), std::move(request));
    }
    if (request.operation == Operation::kHeartbeat) return session.push({Push::Kind::kHeartbeat, "", -1, ""});
    try {
      session.answer(request.id, BP_OK, make_bytes(note(session.id(), request)));
    } catch (const Error& e) {
      session.answer(request.id, e.status(), make_bytes(e.what()));
    }
  }

  // Changes or reads the members; the answer's payload.
  std::string note(ClientId client, const StoreRequest& request) {
    const auto& texts = request.texts;
    const auto expect = [&texts](size_t count) {
      if (texts.size() != count) fail(BP_INVALID, "a request with {} arguments instead of {}", texts.size(), count);
    };
    const auto rank = static_cast<int32_t>(request.number);
    if (rank != request.number) fail(BP_INVALID, "{} is no rank", request.number);
    switch (request.operation) {
      case Operation::kEnroll: {
        expect(2);
        const bool held = members_.enroll(client, texts[0], rank, texts[1]);
        if (held && rank >= 0) clients_.enter(client, fmt::format("rank {} ({})", rank, texts[1]));
        keep_watch();
        return held ? "1" : "0";
      }
      case Operation::kWithdraw:
        expect(1);
        members_.withdraw(client, texts[0], rank);
        return {};
      case Operation::kFates:
        expect(1);
        return encode_fates(members_.fates(texts[0]));
      default:
        expect(0);
        members_.goodbye(client);
        return {};
    }
  }

  // Looks at the clients' silence from time to time, as long as a rank is enrolled.
  void keep_watch() {
    if (watching_) return;
    watching_ = true;
    looked_ = Clock::now();
    watch_later();
  }

  void watch_later() {
    watch_timer_.expires_after(std::chrono::nanoseconds(heartbeat_.tick_ns()));
    watch_timer_.async_wait([this](const ErrorCode& stopped) {
      if (!stopped) watch();
    });
  }

  void watch() {
    const auto now = Clock::now();
    // If this process was itself stopped, the silence may be its own doing.
    const bool late = now - looked_ > std::chrono::nanoseconds(heartbeat_.tick_ns() + heartbeat_.interval_ns);
    looked_ = now;
    for (const auto& [id, session] : sessions_) {
      if (late || session->speaks()) session->hear(now);
      if (now - session->heard() > std::chrono::nanoseconds(heartbeat_.limit_ns) && members_.holds(id)) {
        members_.lose(id, silence_text(heartbeat_));  // it stays connected, to learn of it when it goes on
      }
    }
    watching_ = members_.entries() > 0;
    if (watching_) watch_later();
  }

  void on_closed(Session& session) override {
    limiter_.leave(session.id());
    clients_.leave(session.id());
    board_.forget(session.id());
    members_.lose(session.id(), session.why_closed());
    members_.forget(session.id());
    sessions_.erase(session.id());
  }

  void tell(ClientId client, const Push& push) {
    const auto found = sessions_.find(client);
    if (found != sessions_.end()) found->second->push(push);
  }

  void deliver(Answer answer) {
    const auto found = sessions_.find(answer.client);
    if (found != sessions_.end()) found->second->answer(answer.request, answer.status, std::move(answer.payload));
  }

  using Clock = std::chrono::steady_clock;

  const TcpStoreOptions options_;
  const Heartbeat heartbeat_;
  const std::string identity_ = process_identity();
  uint16_t port_ = 0;
  std::string address_;
  Clients clients_;
  // Only for the thread, once it runs. The io_context is destroyed last, with the handlers that hold sessions.
  asio::io_context io_{1};
  Tcp::acceptor acceptor_{io_};
  asio::steady_timer accept_timer_{io_};
  asio::steady_timer part_timer_{io_};
  Board board_{[this](Answer answer) { deliver(std::move(answer)); }};
  MembershipTable members_{[this](ClientId client, const std::string& scope, const Loss& loss) {
    tell(client, {Push::Kind::kNotice, scope, loss.rank, loss.text});
  }};
  asio::steady_timer watch_timer_{io_};
  bool watching_ = false;
  Clock::time_point looked_ = Clock::now();
  std::map<ClientId, std::shared_ptr<Session>> sessions_;
  ClientId last_client_ = 0;
  const size_t max_pending_connections_ = max_pending_connections();
  ConnectionLimiter limiter_{max_pending_connections_, max_pending_connections_ / 2};
  size_t turned_away_ = 0;
  Clock::time_point next_warning_ = Clock::time_point::min();
  std::thread thread_;
  const ExitHandler exit_handler_{ExitHandler::Turn::kServers, [this](const Deadline& deadline) { part(deadline); }};
};

}  // namespace

std::unique_ptr<TcpStoreServer> make_tcp_store_server(const TcpStoreOptions& options) {
  return std::make_unique<TcpServer>(options);
}

}  // namespace backplane::core
