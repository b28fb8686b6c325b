// SPDX-License-Identifier: Apache-2.0
//
// The host table (abi/host.h) with C++ types. Copyable; valid as long as the table behind it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backplane/base/log_limit.hpp"
#include "failure.hpp"

namespace backplane::sdk {

class Host {
 public:
  explicit Host(const bp_host* host) : host_(host) {}

  const bp_host* get() const { return host_; }

  // `level` is a BP_LOG_* constant. Any thread.
  void log(uint32_t level, const std::string& text) const { host_->log(host_->ctx, level, text.c_str()); }
  // Logs lines of one kind, at most one per period of `limit`.
  void log(base::LogLimit& limit, uint32_t level, const std::string& text) const {
    if (const auto omitted = limit.admit()) log(level, text + *omitted);
  }
  // Reports that the group has failed, also while no operation is in flight (abi/host.h). Any thread, does not block.
  // The core then aborts the group on another thread.
  void report_failure(const Failure& why) const noexcept {
    bp_error err = fresh();
    bp_error_set(&err, why.status(), why.native_code(), why.peer_rank(), why.what());
    host_->report_failure(host_->ctx, &err);
  }
  bool abort_requested() const { return host_->abort_requested(host_->ctx) != 0; }

  // The store that the ranks of this group share. All block and throw Failure; timeouts are nanoseconds.
  void store_set(const std::string& key, std::string_view value) const {
    bp_error err = fresh();
    raise(host_->store_set(host_->ctx, key.c_str(), value.data(), value.size(), &err), err);
  }
  std::string store_get(const std::string& key, int64_t timeout_ns) const {
    std::string value(256, '\0');
    for (;;) {
      bp_error err = fresh();
      uint64_t size = 0;
      const int32_t status =
          host_->store_get(host_->ctx, key.c_str(), value.data(), value.size(), &size, timeout_ns, &err);
      if (status == BP_RESOURCE && size > value.size()) {
        value.resize(size);
        continue;
      }
      raise(status, err);
      value.resize(size);
      return value;
    }
  }
  int64_t store_add(const std::string& key, int64_t delta) const {
    bp_error err = fresh();
    int64_t sum = 0;
    raise(host_->store_add(host_->ctx, key.c_str(), delta, &sum, &err), err);
    return sum;
  }
  void store_wait(const std::vector<std::string>& keys, int64_t timeout_ns) const {
    std::vector<const char*> names;
    for (const std::string& key : keys) names.push_back(key.c_str());
    bp_error err = fresh();
    raise(host_->store_wait(host_->ctx, names.data(), names.size(), timeout_ns, &err), err);
  }
  bool store_delete(const std::string& key) const {
    bp_error err = fresh();
    int32_t existed = 0;
    raise(host_->store_delete(host_->ctx, key.c_str(), &existed, &err), err);
    return existed != 0;
  }

  // Whether the job has a secret (abi/ext/security.h).
  bool secure() const {
    const auto* security = static_cast<const bp_security_api*>(host_->extension(host_->ctx, BP_EXT_SECURITY));
    return security != nullptr && security->secure != 0;
  }

  // out[i] = left[i] op right[i] with the core's arithmetic (abi/ext/reduce.h).
  void combine(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
               uint64_t count) const {
    const auto* reduce = static_cast<const bp_reduce_api*>(host_->extension(host_->ctx, BP_EXT_REDUCE));
    if (reduce == nullptr) throw Failure(BP_UNSUPPORTED, "this core offers no reductions (" BP_EXT_REDUCE ")");
    const int32_t status = reduce->combine(dtype, reduce_op, out, left, right, count);
    if (status != BP_OK) throw Failure(status, "this reduce operation is undefined for this dtype");
  }

 private:
  static bp_error fresh() {
    bp_error err;
    bp_error_init(&err);
    return err;
  }
  static void raise(int32_t status, const bp_error& err) {
    if (status != BP_OK) throw Failure(status, err.text, err.peer_rank, err.native_code);
  }

  const bp_host* host_;
};

}  // namespace backplane::sdk
