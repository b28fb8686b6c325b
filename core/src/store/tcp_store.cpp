// SPDX-License-Identifier: Apache-2.0
//
// The client of a TCP store. Each call is one request.
#include <charconv>
#include <memory>
#include <utility>

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
      connection_->call({0, Operation::kWithdraw, rank_, {scope_}}, Deadline::after(kWithdrawNs), none_);
    } catch (const std::exception&) {
      // The store is lost.
    }
  }
  TcpMembership(const TcpMembership&) = delete;
  TcpMembership& operator=(const TcpMembership&) = delete;

  bool watches() const override { return true; }

  Absences absences(Deadline deadline) override {
    const auto reply = connection_->call({0, Operation::kAbsences, 0, {scope_}}, deadline, none_);
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

class TcpStore final : public Store {
 public:
  TcpStore(std::shared_ptr<Connection> connection, std::shared_ptr<Interruption> interruption)
      : connection_(std::move(connection)), interruption_(std::move(interruption)) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    check_value(key, value);
    request(Operation::kSet, {std::string(key), std::string(value)}, deadline);
  }

  std::string get(std::string_view key, Deadline deadline) override {
    check_key(key);
    return request(Operation::kGet, {std::string(key)}, deadline);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    check_key(key);
    return number(request(Operation::kAdd, {std::string(key)}, deadline, delta));
  }

  void wait(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    request(Operation::kWait, keys, deadline);
  }

  bool check(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    return request(Operation::kCheck, keys, deadline) == "1";
  }

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline deadline) override {
    check_values(key, expected, desired);
    return request(Operation::kCompareSet, {std::string(key), std::string(expected), std::string(desired)}, deadline);
  }

  bool remove(std::string_view key, Deadline deadline) override {
    check_key(key);
    return request(Operation::kRemove, {std::string(key)}, deadline) == "1";
  }

  int64_t num_keys(Deadline deadline) override { return number(request(Operation::kNumKeys, {}, deadline)); }

  std::unique_ptr<Membership> enroll(const Enrolment& enrolment, std::function<void(const Loss&)> on_loss,
                                     Deadline deadline) override {
    auto membership = std::make_unique<TcpMembership>(connection_, enrolment.scope, enrolment.rank, std::move(on_loss));
    if (request(Operation::kEnroll, {enrolment.scope, enrolment.identity}, deadline, enrolment.rank) != "1") {
      membership->release_rank();
    }
    return membership;
  }

  void interrupt(int32_t status, const std::string& why) override { interruption_->raise(status, why); }

  bool interrupted() const override { return interruption_->raised(); }

  std::shared_ptr<Store> view() override { return std::make_shared<TcpStore>(connection_, interruption_->child()); }

  std::string describe() const override { return connection_->where(); }

 private:
  std::string request(Operation operation, std::vector<std::string> texts, const Deadline& deadline,
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
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options, Deadline deadline) {
  auto connection =
      std::make_shared<Connection>(dial(options, deadline), "tcp://" + host_port(options.host, options.port));
  // Weak: a view may outlive the connection.
  auto interruption = std::make_shared<Interruption>([weak = std::weak_ptr<Connection>(connection)] {
    if (const auto alive = weak.lock()) alive->wake();
  });
  return std::make_shared<TcpStore>(std::move(connection), std::move(interruption));
}

}  // namespace backplane::core
