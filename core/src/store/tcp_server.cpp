// SPDX-License-Identifier: Apache-2.0
//
// The server of a TCP store. One thread accepts clients, serves requests, and detects lost ranks. A rank is lost if the
// connection of its client ends, or the client is silent for too long, before the client withdraws it.
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "backplane/base/pending_connections.hpp"
#include "liveness/exit_handler.hpp"
#include "liveness/membership_table.hpp"
#include "log.hpp"
#include "security/connection_limiter.hpp"
#include "security/frame_budget.hpp"
#include "security/secret.hpp"
#include "store/admission.hpp"
#include "store/clients.hpp"
#include "store/membership_handler.hpp"
#include "store/request_handler.hpp"
#include "store/store.hpp"
#include "store/tcp_address.hpp"
#include "store/tcp_listener.hpp"
#include "store/tcp_session.hpp"
#include "store/watch_timer.hpp"
#include "store/wire.hpp"
#include "waiting.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

constexpr int64_t kShutdownNs = 2'000'000'000;
constexpr std::chrono::milliseconds kSendPollPause(1);

TcpStoreOptions checked(TcpStoreOptions options) {
  if (options.job_id.size() > kMaxJobIdSize) {
    fail(BP_INVALID, "the job id has {} bytes; at most {} are allowed", options.job_id.size(), kMaxJobIdSize);
  }
  if (!options.heartbeat) options.heartbeat = environment_heartbeat();
  return options;
}

class TcpServer final : public TcpStoreServer, private SessionOwner {
 public:
  explicit TcpServer(const TcpStoreOptions& options) : options_(checked(options)) {
    if (options_.secret == nullptr && !listener_.endpoint().address().is_loopback()) {
      log(BP_LOG_WARN,
          "the store at {} has no job secret: any process that reaches this address can join the job; set "
          "BACKPLANE_SECRET_FILE for the launcher and all ranks unless the network is trusted",
          host_port(options_.host, port()));
    }
    thread_ = start_quiet_thread("bp-store-server", [this] { run(); });
  }

  ~TcpServer() override {
    announce_shutdown(Deadline::after(kShutdownNs));
    io_.stop();
    thread_.join();
  }
  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;

  uint16_t port() const override { return listener_.endpoint().port(); }

  std::string address() const override { return host_port(listener_.endpoint().address().to_string(), port()); }

  void wait(Deadline deadline) override { clients_.await_none(deadline, address()); }

 private:
  using Clock = std::chrono::steady_clock;

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
      return entry.second->accepted() && entry.second->stream().sending();
    });
    if (!sending) return sent->set_value();
    send_timer_.expires_after(kSendPollPause);
    send_timer_.async_wait([this, sent](const ErrorCode&) { await_sent(sent); });
  }

  // Shared: a session may be closed while it is used. Null if it is closed.
  std::shared_ptr<Session> find(ClientId client) const {
    const auto found = sessions_.find(client);
    return found == sessions_.end() ? nullptr : found->second;
  }

  void start_session(Tcp::socket socket) {
    ErrorCode error;
    const auto from = socket.remote_endpoint(error).address();
    if (error) return;  // closed
    const ClientId id = ++last_client_;
    if (const auto victim = limiter_.admit(id, from)) {
      if (const auto session = find(*victim)) session->close("it sent no Hello before too many others connected");
    }
    const auto session = std::make_shared<Session>(static_cast<SessionOwner&>(*this), id, std::move(socket));
    sessions_.emplace(id, session);
    if (sessions_.size() == 1) watch_timer_.start();
    session->start();
  }

  const Secret* secret() const override { return options_.secret.get(); }

  Welcome on_hello(Session& session, const Hello& hello, bool proven) override {
    Admission::JobState job;
    job.closing = !options_.closing_key.empty() && requests_.contains(options_.closing_key);
    if (!options_.failure_key.empty()) job.failure = requests_.find(options_.failure_key);
    Welcome welcome = admission_.check(hello, proven, job);
    if (welcome.status != BP_OK) return welcome;
    limiter_.release(session.id());
    const std::string rank = hello.rank < 0 ? "" : fmt::format("rank {} at ", hello.rank);
    clients_.enter(session.id(), rank + session.stream().remote_address());
    return welcome;
  }

  Welcome on_wrong_secret() override { return admission_.refuse_wrong_secret(); }

  bool on_unfinished(Session& session, size_t size) override {
    return unfinished_.begin(session.id(), size, Clock::now());
  }

  void on_finished(Session& session) override { finish_frame(session.id()); }

  void finish_frame(ClientId client) {
    for (const ClientId next : unfinished_.finish(client, Clock::now())) {
      if (const auto session = find(next)) session->resume();
    }
  }

  void on_request(Session& session, StoreRequest request) override {
    if (request.operation == RequestKind::kHeartbeat) return session.push({Push::Kind::kHeartbeat, "", -1, ""});
    if (!is_membership_request(request)) return requests_.handle(session.id(), std::move(request));
    try {
      session.reply(request.id, BP_OK, make_bytes(handle_membership(members_, clients_, session.id(), request)));
    } catch (const Error& e) {
      session.reply(request.id, e.status(), make_bytes(e.what()));
    }
  }

  // Looks for clients that are silent, or whose frames arrive too slowly. Returns whether there are clients.
  bool watch(Clock::time_point now, bool late) {
    for (const auto& [id, session] : sessions_) {
      // A client that does not read its replies is not read either: what it sent before is no sign of life.
      if (late || (session->takes_frames() && session->stream().has_unread())) session->touch(now);
      const auto silence = now - session->stream().last_activity();
      if (silence > std::chrono::nanoseconds(heartbeat().limit_ns) && members_.holds(id)) {
        members_.lose(id, silence_text(heartbeat()));  // it stays connected and gets the notice when it resumes
      }
    }
    // A client that waits to be read would take this server for lost.
    for (const ClientId id : unfinished_.waiting()) {
      if (const auto session = find(id)) session->push({Push::Kind::kHeartbeat, "", -1, ""});
    }
    if (late) unfinished_.restart(now);
    const auto slow = unfinished_.slow(now, [this](ClientId id) {
      const auto session = find(id);
      return session == nullptr ? 0 : session->stream().unfinished_bytes();
    });
    for (const ClientId id : slow) {
      if (const auto session = find(id)) session->close("it sent a frame too slowly");
    }
    return !sessions_.empty();
  }

  std::string end_text(const Session& session, const ErrorCode& error) const override {
    return core::end_text(error, "its connection to the store", members_.identity(session.id()));
  }

  void on_closed(Session& session, const std::string& why) override {
    const ClientId id = session.id();
    limiter_.release(id);
    clients_.leave(id);
    requests_.forget(id);
    members_.lose(id, why);
    members_.forget(id);
    sessions_.erase(id);
    finish_frame(id);
  }

  void deliver(OutgoingReply reply) {
    if (const auto session = find(reply.client)) session->reply(reply.request, reply.status, std::move(reply.payload));
  }

  const Heartbeat& heartbeat() const { return *options_.heartbeat; }

  const TcpStoreOptions options_;
  Clients clients_;
  // Used only by the thread once it runs. The io_context is destroyed last, with the handlers that hold sessions.
  asio::io_context io_{1};
  Listener listener_{io_, options_.host, options_.port, Deadline::after(options_.resolve_ns),
                     [this](Tcp::socket socket) { start_session(std::move(socket)); }};
  Admission admission_{options_, host_port(options_.host, port())};
  asio::steady_timer send_timer_{io_};
  WatchTimer watch_timer_{io_, heartbeat(), [this](Clock::time_point now, bool late) { return watch(now, late); }};
  RequestHandler requests_{[this](OutgoingReply reply) { deliver(std::move(reply)); }};
  MembershipTable members_{[this](ClientId client, const std::string& scope, const Loss& loss) {
    if (const auto session = find(client)) session->push({Push::Kind::kNotice, scope, loss.rank, loss.text});
  }};
  std::map<ClientId, std::shared_ptr<Session>> sessions_;
  ClientId last_client_ = 0;
  ConnectionLimiter limiter_{base::max_pending_connections(), base::max_pending_connections() / 2};
  FrameBudget unfinished_{{.grace = std::chrono::nanoseconds(heartbeat().limit_ns)}};
  std::thread thread_;
  const ExitHandler exit_handler_{ExitHandler::Order::kServers,
                                  [this](const Deadline& deadline) { announce_shutdown(deadline); }};
};

}  // namespace

std::unique_ptr<TcpStoreServer> make_tcp_store_server(const TcpStoreOptions& options) {
  return std::make_unique<TcpServer>(options);
}

}  // namespace backplane::core
