// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_dial.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "store/wire.hpp"
#include "text.hpp"
#include "waiting.hpp"

namespace backplane::core {

namespace asio = boost::asio;

namespace {

using Time = Deadline::Clock::time_point;

constexpr auto kStepTime = std::chrono::seconds(5);  // for one connect, write or read
constexpr int64_t kFirstRetryNs = 10'000'000;
constexpr int64_t kLongestRetryNs = 500'000'000;
constexpr int64_t kLeastNs = 100'000'000;  // for an attempt, even when the deadline has passed

// Starts one operation on the link's socket and runs it to its end, or at `until` to its cancellation.
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
  const int fd = open_tcp_socket(endpoint.protocol());
  if (fd < 0) return {errno, boost::system::system_category()};
  link.socket.assign(endpoint.protocol(), fd, error);
  if (error) {
    ::close(fd);
    return error;
  }
  error = finish(link, until, [&link, &endpoint](auto handler) { link.socket.async_connect(endpoint, handler); });
  if (error) return error;
  // While nobody listens, a client on the same machine may be given the very port that it dials and meet itself. The
  // calls fail if the other end has closed the connection by now.
  ErrorCode gone;
  const auto local = link.socket.local_endpoint(gone);
  if (!gone && local == link.socket.remote_endpoint(gone)) gone = asio::error::connection_refused;
  if (gone) link.socket.close(error);
  return gone;
}

ErrorCode read(Link& link, Time until, std::string& bytes) {
  return finish(link, until,
                [&link, &bytes](auto handler) { asio::async_read(link.socket, asio::buffer(bytes), handler); });
}

[[noreturn]] void fail_stranger(const std::string& where) {
  fail(BP_INVALID, "what listens at {} is not a Backplane store; choose another MASTER_PORT", where);
}

ErrorCode write(Link& link, Time until, const std::string& bytes) {
  return finish(link, until,
                [&link, &bytes](auto handler) { asio::async_write(link.socket, asio::buffer(bytes), handler); });
}

// Sends a frame and takes the answer's. Returns why to try again, empty if there is an answer.
std::string ask(Link& link, const std::string& where, const std::string& question, Time until, std::string& answer) {
  ErrorCode error = write(link, until, question);
  std::string size(kSizeBytes, '\0');
  if (!error) error = read(link, until, size);
  if (error == asio::error::timed_out) return "it accepted the connection but did not answer";
  if (error) return "it closed the connection: " + error.message();
  const size_t most = kMaxWelcomeSize + (link.opener ? kSealBytes : 0);
  if (decode_size(size.data()) > most) fail_stranger(where);
  answer.assign(decode_size(size.data()), '\0');
  error = read(link, until, answer);
  return error ? error.message() : "";
}

// Comes to the keys of this connection. Nothing that is said before both have proven the secret is believed, so the
// sentences are of this side's making.
std::string exchange_keys(Link& link, const Secret& secret, const std::string& where, Time until) {
  const KeyExchange exchange(KeyExchange::End::kClient);
  std::string answer;
  const std::string reason = ask(link, where, encode_key_offer(exchange.public_key()), until, answer);
  if (!reason.empty()) return reason;
  const auto key = decode_key_answer(answer);
  if (!key && decode_welcome(answer)) {
    fail(BP_INVALID,
         "the store at {} has no job secret, but this rank has one ({}); give the launcher and all ranks "
         "the same, or none",
         where, secret_variable());
  }
  const auto keys = key ? exchange.agree(secret, *key) : std::nullopt;
  if (!keys) fail_stranger(where);
  link.sealer.emplace(keys->to_server);
  link.opener.emplace(keys->to_client);
  return {};
}

// Only who has the secret can have sealed the answer.
void open_answer(Link& link, const std::string& where, std::string& answer) {
  std::string opened = answer;
  if (link.opener->open(opened)) {
    answer = std::move(opened);
    return;
  }
  if (!decode_welcome(answer)) fail_stranger(where);
  fail(BP_INVALID,
       "the store at {} has another job secret than this rank ({}), or is another job's; give the launcher "
       "and all ranks the same secret",
       where, secret_variable());
}

// Says Hello. Returns why to try again, empty if the server took this client in.
std::string greet(Link& link, const TcpStoreOptions& options, Time until) {
  const std::string where = host_port(options.host, options.port);
  link.sealer.reset();
  link.opener.reset();
  if (options.secret != nullptr) {
    std::string reason = exchange_keys(link, *options.secret, where, until);
    if (!reason.empty()) return reason;
  }
  std::string hello = encode(Hello{kProtocolVersion, options.rank, options.world_size, options.job_id});
  if (link.sealer) hello = link.sealer->seal(std::string_view(hello).substr(kSizeBytes));
  std::string answer;
  std::string reason = ask(link, where, hello, until, answer);
  if (!reason.empty()) return reason;
  if (link.opener) open_answer(link, where, answer);
  const auto welcome = decode_welcome(answer);
  if (!welcome) fail_stranger(where);
  if (welcome->status == BP_AGAIN) return welcome->text;
  if (welcome->status != BP_OK) throw Error(welcome->status, welcome->text);
  link.welcome = *welcome;
  return {};
}

// Returns why to try again, empty on success.
std::string try_once(Link& link, const TcpStoreOptions& options, const Deadline& deadline) {
  ErrorCode error;
  const auto endpoints = resolve(options.host, options.port, error);
  std::string reason = fmt::format("cannot resolve the host name: {}", error.message());
  for (const auto& endpoint : endpoints) {
    // At least a moment: or the last attempt, at the deadline, would hide why those before it failed.
    const Time until = std::min(at_least(deadline, kLeastNs).at(), Deadline::Clock::now() + kStepTime);
    error = connect(link, endpoint, until);
    reason = error ? error.message() : greet(link, options, until);
    if (reason.empty()) break;
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
  int64_t pause_ns = kFirstRetryNs;
  for (;;) {
    const std::string reason = try_once(*link, options, deadline);
    if (reason.empty()) break;
    if (deadline.passed()) {
      fail(BP_TIMEOUT, "could not reach the store at {} within {}: {}; is rank 0 or the launcher running there?",
           host_port(options.host, options.port), allowance.text(), reason);
    }
    std::this_thread::sleep_until(std::min(deadline.at(), Deadline::after(pause_ns).at()));
    pause_ns = std::min(pause_ns * 3 / 2, kLongestRetryNs);
  }
  tune(link->socket);
  link->io.restart();
  return link;
}

}  // namespace backplane::core
