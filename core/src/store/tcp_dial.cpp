// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_dial.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "interrupt.hpp"
#include "log.hpp"
#include "store/wire.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

using Time = Deadline::Clock::time_point;

constexpr auto kStepTime = std::chrono::seconds(5);  // for one connect, write or read
constexpr int64_t kFirstRetryNs = 10'000'000;
constexpr int64_t kMaxRetryNs = 500'000'000;
constexpr int64_t kWarnAgainNs = 60'000'000'000;
constexpr int64_t kMinAttemptNs = 100'000'000;  // for an attempt, also when the deadline has passed

// Runs one operation on the link's socket to its end, or cancels it at `until`.
template <typename Start>
ErrorCode finish(Link& link, Time until, Start start) {
  bool done = false;
  ErrorCode result;
  start([&done, &result](const ErrorCode& error, auto&&...) {
    done = true;
    result = error;
  });
  link.io.restart();
  while (!done && link.io.run_one_until(until) > 0) {
  }
  if (done) return result;
  ErrorCode ignored;
  link.socket.close(ignored);
  link.io.restart();
  link.io.run();
  return asio::error::timed_out;
}

ErrorCode connect(Link& link, const Tcp::endpoint& endpoint, Time until) {
  ErrorCode error;
  link.socket.close(error);
  error = open_socket(link.socket, endpoint.protocol());
  if (error) return error;
  error = finish(link, until, [&link, &endpoint](auto handler) { link.socket.async_connect(endpoint, handler); });
  if (error) return error;
  // Without a listener, a client on the same machine may get the port that it connects to and reach itself. The calls
  // fail if the other end has closed the connection.
  ErrorCode closed;
  const auto local = link.socket.local_endpoint(closed);
  if (!closed && local == link.socket.remote_endpoint(closed)) closed = asio::error::connection_refused;
  if (closed) link.socket.close(error);
  return closed;
}

ErrorCode read(Link& link, Time until, std::string& bytes) {
  return finish(link, until,
                [&link, &bytes](auto handler) { asio::async_read(link.socket, asio::buffer(bytes), handler); });
}

[[noreturn]] void fail_not_a_store(const std::string& where) {
  fail(BP_INVALID,
       "the program that listens at {} is not a Backplane store; choose another port (MASTER_PORT, under torchrun "
       "BACKPLANE_MASTER_PORT, or the init method)",
       where);
}

ErrorCode write(Link& link, Time until, const std::string& bytes) {
  return finish(link, until,
                [&link, &bytes](auto handler) { asio::async_write(link.socket, asio::buffer(bytes), handler); });
}

// Sends a frame and reads the reply. Returns why to retry, empty on success.
std::string request(Link& link, const std::string& where, const std::string& frame, Time until, std::string& reply) {
  ErrorCode error = write(link, until, frame);
  std::string size(kSizeBytes, '\0');
  if (!error) error = read(link, until, size);
  if (error == asio::error::timed_out) return "it accepted the connection but did not reply";
  if (error) return "it closed the connection: " + error.message();
  const size_t most = kMaxWelcomeSize + (link.opener ? kSealBytes : 0);
  if (decode_size(size.data()) > most) fail_not_a_store(where);
  reply.assign(decode_size(size.data()), '\0');
  error = read(link, until, reply);
  return error ? error.message() : "";
}

// Agrees on the keys of this connection. Texts of the server are not authenticated yet and are not reported.
std::string exchange_keys(Link& link, const Secret& secret, const std::string& where, Time until) {
  const KeyExchange exchange(KeyExchange::End::kClient);
  std::string reply;
  const std::string reason = request(link, where, encode_key_offer(exchange.public_key()), until, reply);
  if (!reason.empty()) return reason;
  const auto key = decode_key_reply(reply);
  if (!key && decode_welcome(reply)) {
    fail(BP_INVALID,
         "the store at {} has no job secret, but this rank has one ({}); give the launcher and all ranks "
         "the same, or none",
         where, secret_variable());
  }
  const auto keys = key ? exchange.agree(secret, *key) : std::nullopt;
  if (!keys) fail_not_a_store(where);
  link.sealer.emplace(keys->to_server);
  link.opener.emplace(keys->to_client);
  return {};
}

// Only a process with the secret can have sealed the reply.
void open_reply(Link& link, const std::string& where, std::string& reply) {
  std::string bytes = reply;
  if (const auto opened = link.opener->open(bytes)) {
    reply = *opened;
    return;
  }
  if (!decode_welcome(reply)) fail_not_a_store(where);
  fail(BP_INVALID,
       "the store at {} has another job secret than this rank ({}), or belongs to another job; give the launcher "
       "and all ranks the same secret",
       where, secret_variable());
}

// Sends the Hello. Returns why to retry, empty if the server accepted this client.
std::string send_hello(Link& link, const TcpStoreOptions& options, Time until) {
  const std::string where = host_port(options.host, options.port);
  link.sealer.reset();
  link.opener.reset();
  if (options.secret != nullptr) {
    std::string reason = exchange_keys(link, *options.secret, where, until);
    if (!reason.empty()) return reason;
  }
  std::string hello = encode(Hello{kProtocolVersion, options.rank, options.world_size, options.job_id});
  if (link.sealer) hello = link.sealer->seal(std::string_view(hello).substr(kSizeBytes));
  std::string reply;
  std::string reason = request(link, where, hello, until, reply);
  if (!reason.empty()) return reason;
  if (link.opener) open_reply(link, where, reply);
  const auto welcome = decode_welcome(reply);
  if (!welcome) fail_not_a_store(where);
  if (welcome->status == BP_AGAIN) return welcome->text;
  if (welcome->status != BP_OK) throw Error(welcome->status, welcome->text);
  link.welcome = *welcome;
  return {};
}

// Returns why to retry, empty on success.
std::string try_once(Link& link, const TcpStoreOptions& options, const Deadline& deadline) {
  ErrorCode error;
  const auto endpoints = resolve(options.host, options.port, error);
  std::string reason = fmt::format("cannot resolve the host name: {}", error.message());
  for (const auto& endpoint : endpoints) {
    // At least kMinAttemptNs: the last attempt would otherwise hide why the earlier ones failed.
    const Time until = std::min(at_least(deadline, kMinAttemptNs).at(), Deadline::Clock::now() + kStepTime);
    error = connect(link, endpoint, until);
    reason = error ? error.message() : send_hello(link, options, until);
    if (reason.empty()) break;
    if (!is_literal(options.host)) reason += fmt::format(" ({})", endpoint.address().to_string());
  }
  return reason;
}

}  // namespace

std::unique_ptr<Link> dial(const TcpStoreOptions& options, const Deadline& deadline) {
  if (options.job_id.size() > kMaxJobIdSize) {
    fail(BP_INVALID, "the job id has {} bytes; at most {} are allowed", options.job_id.size(), kMaxJobIdSize);
  }
  const Allowance allowance(deadline);
  auto link = std::make_unique<Link>();
  const std::string address = host_port(options.host, options.port);
  int64_t pause_ns = kFirstRetryNs;
  Deadline warn_at = Deadline::after(options.warn_after_ns);
  for (;;) {
    const std::string reason = try_once(*link, options, deadline);
    if (reason.empty()) break;
    if (deadline.passed()) {
      fail(BP_TIMEOUT,
           "could not reach the store at {} within {}: {}; look at the output of rank 0 or the launcher, which serves "
           "it, for why it did not start, and check the address (MASTER_ADDR and MASTER_PORT, or the init method)",
           address, allowance.text(), reason);
    }
    if (warn_at.passed()) {
      log(BP_LOG_WARN, "cannot reach the store at {} yet: {}; trying for up to {}", address, reason, allowance.text());
      warn_at = Deadline::after(kWarnAgainNs);
    }
    Interruptible::check();
    std::this_thread::sleep_until(std::min(deadline.at(), Deadline::after(pause_ns).at()));
    pause_ns = std::min(pause_ns * 3 / 2, kMaxRetryNs);
  }
  set_options(link->socket);
  link->io.restart();
  return link;
}

}  // namespace backplane::core
