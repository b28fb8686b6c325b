// SPDX-License-Identifier: Apache-2.0
//
// The client of a TCP store. Each call is one request.
#include <charconv>
#include <memory>
#include <string_view>
#include <utility>

#include "log.hpp"
#include "store/checks.hpp"
#include "store/store.hpp"
#include "store/tcp_connection.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr int64_t kWithdrawNs = 1'000'000'000;

class TcpMembership final : public Membership {
 public:
  TcpMembership(std::shared_ptr<Connection> connection, std::string scope, int32_t rank,
                std::function<void(const Loss&)> on_loss)
      : connection_(std::move(connection)),
        scope_(std::move(scope)),
        rank_(rank),
        subscription_(connection_->subscribe(scope_, std::move(on_loss))) {}

  ~TcpMembership() override {
    connection_->unsubscribe(subscription_);
    try {
      connection_->call({0, RequestKind::kWithdraw, rank_, {scope_}}, Deadline::after(kWithdrawNs), none_);
    } catch (const std::exception&) {
      // The store is lost.
    }
  }
  TcpMembership(const TcpMembership&) = delete;
  TcpMembership& operator=(const TcpMembership&) = delete;

  bool watches() const override { return true; }

  Absences absences(Deadline deadline) override {
    const auto reply = connection_->call({0, RequestKind::kAbsences, 0, {scope_}}, deadline, none_);
    if (!reply)
      fail(BP_TIMEOUT, "the store at {} did not reply in time to a request for the lost ranks", connection_->where());
    if (reply->status != BP_OK) throw Error(reply->status, reply->payload);
    auto absences = decode_absences(reply->payload);
    if (!absences) fail(BP_INTERNAL, "the store at {} sent a malformed reply", connection_->where());
    return std::move(*absences);
  }

  // Another client holds the rank.
  void release_rank() { rank_ = -1; }

 private:
  const std::shared_ptr<Connection> connection_;
  const std::string scope_;
  int32_t rank_;
  const Interruption none_{[] {}};
  const uint64_t subscription_;
};

// Requests were added without a new version of the protocol. This is the reply of a server that lacks one.
bool is_unknown_request(const Error& e) {
  return e.status() == BP_INVALID && std::string_view(e.what()).ends_with("is unknown to this store");
}

class TcpStore final : public Store {
 public:
  TcpStore(std::shared_ptr<Connection> connection, std::shared_ptr<Interruption> interruption, std::string local)
      : connection_(std::move(connection)), interruption_(std::move(interruption)), local_(std::move(local)) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    check_value(key, value);
    request(RequestKind::kSet, {std::string(key), std::string(value)}, deadline);
  }

  std::string get(std::string_view key, Deadline deadline) override {
    check_key(key);
    return request(RequestKind::kGet, {std::string(key)}, deadline);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    check_key(key);
    return number(request(RequestKind::kAdd, {std::string(key)}, deadline, delta));
  }

  void wait(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    request(RequestKind::kWait, keys, deadline);
  }

  bool check(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    return request(RequestKind::kCheck, keys, deadline) == "1";
  }

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline deadline) override {
    check_values(key, expected, desired);
    return request(RequestKind::kCompareSet, {std::string(key), std::string(expected), std::string(desired)}, deadline);
  }

  bool remove(std::string_view key, Deadline deadline) override {
    check_key(key);
    return request(RequestKind::kRemove, {std::string(key)}, deadline) == "1";
  }

  bool removes_prefixes() const override { return !connection_->lacks(RequestKind::kRemovePrefix); }
  // The server may be of a release that does not know the request: its keys stay until it ends.
  void remove_prefix(std::string_view prefix, Deadline deadline) override {
    check_key(prefix);
    if (!removes_prefixes()) return;
    try {
      request(RequestKind::kRemovePrefix, {std::string(prefix)}, deadline);
    } catch (const Error& e) {
      if (!is_unknown_request(e)) throw;
      connection_->note_lack(RequestKind::kRemovePrefix);
      log(BP_LOG_INFO, "the store at {} is of an older release and keeps the keys of ended groups", describe());
    }
  }

  int64_t num_keys(Deadline deadline) override { return number(request(RequestKind::kNumKeys, {}, deadline)); }

  std::unique_ptr<Membership> enroll(const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                     Deadline deadline) override {
    auto membership = std::make_unique<TcpMembership>(connection_, enrolment.scope, enrolment.rank, std::move(on_loss));
    if (request(RequestKind::kEnroll, {enrolment.scope, enrolment.identity}, deadline, enrolment.rank) != "1") {
      membership->release_rank();
    }
    return membership;
  }

  void report_end(const Enrolment& rank, const std::string& reason, Deadline deadline) override {
    try {
      request(RequestKind::kReportEnd, {rank.scope, rank.identity, reason}, deadline, rank.rank);
    } catch (const Error& e) {
      if (!is_unknown_request(e)) throw;
      fail(BP_UNSUPPORTED,
           "the store at {} is of an older release, which takes no reports of ended ranks; start it with this one",
           describe());
    }
  }

  void interrupt(int32_t status, const std::string& why) override { interruption_->raise(status, why); }

  bool interrupted() const override { return interruption_->raised(); }

  std::shared_ptr<Store> view() override {
    return std::make_shared<TcpStore>(connection_, interruption_->child(), local_);
  }

  std::string describe() const override { return connection_->where(); }

  std::string local_address() const override { return local_; }

 private:
  std::string request(RequestKind operation, std::vector<std::string> texts, const Deadline& deadline,
                      int64_t number = 0) {
    const Allowance allowance(deadline);
    const std::string about = texts.empty() ? "the number of keys" : quoted(texts.front());
    auto reply = connection_->call({0, operation, number, std::move(texts)}, deadline, *interruption_);
    if (!reply) {
      fail(BP_TIMEOUT,
           "the store at {} did not reply within {} to a request for {}; its process may be suspended or the network "
           "down",
           describe(), allowance.text(), about);
    }
    if (reply->status == BP_OK) return std::move(reply->payload);
    if (reply->status == BP_TIMEOUT) fail_missing(reply->payload, allowance, describe());
    throw Error(reply->status, reply->payload);
  }

  int64_t number(const std::string& payload) const {
    int64_t value = 0;
    const char* end = payload.data() + payload.size();
    const auto parsed = std::from_chars(payload.data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      fail(BP_INTERNAL, "the store at {} replied {} instead of a number", describe(), quoted(payload));
    }
    return value;
  }

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Interruption> interruption_;
  const std::string local_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options, Deadline deadline) {
  auto link = dial(options, deadline);
  std::string where = "tcp://" + host_port(options.host, options.port);
  ErrorCode error;
  const auto remote = link->socket.remote_endpoint(error);
  if (!error && !is_literal(options.host)) where += fmt::format(" ({})", remote.address().to_string());
  const auto own = link->socket.local_endpoint(error);
  const std::string local = error ? "" : own.address().to_string();
  auto connection = std::make_shared<Connection>(std::move(link), where);
  // Weak: a view may outlive the connection.
  auto interruption = std::make_shared<Interruption>([weak = std::weak_ptr<Connection>(connection)] {
    if (const auto alive = weak.lock()) alive->wake();
  });
  return std::make_shared<TcpStore>(std::move(connection), std::move(interruption), local);
}

}  // namespace backplane::core
