// SPDX-License-Identifier: Apache-2.0
#include "store/callbacks.hpp"

#include <memory>
#include <utility>

#include "error.hpp"
#include "text.hpp"

namespace backplane::core {

Callbacks::Callbacks(const bp_store_callbacks& table)
    : table_(table), name_(table.name == nullptr || *table.name == '\0' ? "the program's store" : table.name) {}

Callbacks::~Callbacks() {
  if (table_.release != nullptr) table_.release(table_.ctx);
}

void Callbacks::fail_result(const char* callback, const std::string& key, const std::string& what) const {
  fail(BP_INTERNAL, "the callback `{}` of {} {} (request for {}); see backplane.h for what it must do", callback, name_,
       what, key.empty() ? "the number of keys" : quoted(key));
}

// Returns BP_OK, or BP_TIMEOUT if `may_time_out`. Throws other failures.
int32_t Callbacks::call(const char* callback, const std::string& key, const std::function<int32_t(bp_error*)>& body,
                        bool may_time_out) const {
  if (key.find('\0') != std::string::npos) {
    fail(BP_INVALID, "the key {} contains a NUL, which the callbacks of {} do not support; use another key",
         quoted(key), name_);
  }
  bp_error err;
  bp_error_init(&err);
  const int32_t status = body(&err);
  if (status == BP_OK || (may_time_out && status == BP_TIMEOUT)) return status;
  if (status < BP_OK || status > BP_INTERNAL || status == BP_AGAIN) {
    fail_result(callback, key, fmt::format("returned {}, which is not an allowed status", status));
  }
  err.text[BP_ERROR_TEXT_SIZE - 1] = '\0';
  const std::string about = key.empty() ? "" : " for key " + quoted(key);
  throw Error(status,
              fmt::format("the callback `{}` of {} failed{}: {}", callback, name_, about,
                          err.text[0] == '\0' ? "it gave no reason" : err.text),
              -1, err.native_code);
}

void Callbacks::set(const std::string& key, const std::string& value, int64_t timeout_ns) const {
  call("set", key, [this, &key, &value, timeout_ns](bp_error* err) {
    return table_.set(table_.ctx, key.c_str(), value.data(), value.size(), timeout_ns, err);
  });
}

std::optional<std::string> Callbacks::get(const std::string& key, int64_t timeout_ns) const {
  const auto answer = std::make_unique<bp_store_answer>();
  const auto ask = [this, &key, &answer, timeout_ns](bp_error* err) {
    return table_.get(table_.ctx, key.c_str(), answer.get(), timeout_ns, err);
  };
  if (call("get", key, ask, true) == BP_TIMEOUT) return std::nullopt;
  if (!answer->value) fail_result("get", key, "returned BP_OK without a value");
  return std::move(answer->value);
}

int64_t Callbacks::add(const std::string& key, int64_t delta, int64_t timeout_ns) const {
  int64_t sum = 0;
  call("add", key, [this, &key, delta, &sum, timeout_ns](bp_error* err) {
    return table_.add(table_.ctx, key.c_str(), delta, &sum, timeout_ns, err);
  });
  return sum;
}

std::string Callbacks::compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                   int64_t timeout_ns) const {
  const auto answer = std::make_unique<bp_store_answer>();
  call("compare_set", key, [this, &key, &expected, &desired, &answer, timeout_ns](bp_error* err) {
    return table_.compare_set(table_.ctx, key.c_str(), expected.data(), expected.size(), desired.data(), desired.size(),
                              answer.get(), timeout_ns, err);
  });
  if (!answer->value) fail_result("compare_set", key, "returned BP_OK without a value");
  return std::move(*answer->value);
}

bool Callbacks::remove(const std::string& key, int64_t timeout_ns) const {
  int32_t existed = 0;
  call("delete_key", key, [this, &key, &existed, timeout_ns](bp_error* err) {
    return table_.delete_key(table_.ctx, key.c_str(), &existed, timeout_ns, err);
  });
  return existed != 0;
}

int64_t Callbacks::num_keys(int64_t timeout_ns) const {
  if (table_.num_keys == nullptr) fail(BP_UNSUPPORTED, "{} has no callback `num_keys`", name_);
  int64_t count = 0;
  call("num_keys", "",
       [this, &count, timeout_ns](bp_error* err) { return table_.num_keys(table_.ctx, &count, timeout_ns, err); });
  if (count < 0) fail_result("num_keys", "", fmt::format("counted {} keys", count));
  return count;
}

}  // namespace backplane::core
