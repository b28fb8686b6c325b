// SPDX-License-Identifier: Apache-2.0
//
// The client of a TCP store: each call is one request.
#include <charconv>
#include <memory>
#include <utility>

#include "store/store.hpp"
#include "store/tcp_connection.hpp"
#include "store/wording.hpp"

namespace backplane::core {
namespace {

class TcpStore final : public Store {
 public:
  TcpStore(std::shared_ptr<Connection> connection, std::shared_ptr<Interruption> interruption)
      : connection_(std::move(connection)), interruption_(std::move(interruption)) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    check_value(key, value);
    ask(Operation::kSet, {std::string(key), std::string(value)}, deadline);
  }

  std::string get(std::string_view key, Deadline deadline) override {
    check_key(key);
    return ask(Operation::kGet, {std::string(key)}, deadline);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    check_key(key);
    return number(ask(Operation::kAdd, {std::string(key)}, deadline, delta));
  }

  void wait(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    ask(Operation::kWait, keys, deadline);
  }

  bool check(const std::vector<std::string>& keys, Deadline deadline) override {
    check_keys(keys);
    return ask(Operation::kCheck, keys, deadline) == "1";
  }

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Deadline deadline) override {
    check_values(key, expected, desired);
    return ask(Operation::kCompareSet, {std::string(key), std::string(expected), std::string(desired)}, deadline);
  }

  bool remove(std::string_view key, Deadline deadline) override {
    check_key(key);
    return ask(Operation::kRemove, {std::string(key)}, deadline) == "1";
  }

  int64_t num_keys(Deadline deadline) override { return number(ask(Operation::kNumKeys, {}, deadline)); }

  void interrupt(int32_t status, const std::string& why) override { interruption_->raise(status, why); }

  std::shared_ptr<Store> view() override { return std::make_shared<TcpStore>(connection_, interruption_->child()); }

  std::string describe() const override { return connection_->where(); }

 private:
  std::string ask(Operation operation, std::vector<std::string> texts, const Deadline& deadline, int64_t number = 0) {
    const Allowance allowance(deadline);
    const std::string about = texts.empty() ? "the number of keys" : quoted(texts.front());
    auto reply = connection_->call({0, operation, number, std::move(texts)}, deadline, *interruption_);
    if (!reply) {
      fail(BP_TIMEOUT,
           "the store at {} did not answer within {} (asked about {}): its process may be stopped or the "
           "network down",
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
      fail(BP_INTERNAL, "the store at {} answered {} instead of a number", describe(), quoted(payload));
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
  // Weak: a view may outlive the last handle that could use the connection, and must not keep its thread.
  auto interruption = std::make_shared<Interruption>([weak = std::weak_ptr<Connection>(connection)] {
    if (const auto alive = weak.lock()) alive->wake();
  });
  return std::make_shared<TcpStore>(std::move(connection), std::move(interruption));
}

}  // namespace backplane::core
