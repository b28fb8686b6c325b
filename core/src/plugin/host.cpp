// SPDX-License-Identifier: Apache-2.0
#include "plugin/host.hpp"

#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "backplane/abi/ext/reduce.h"
#include "backplane/abi/ext/security.h"
#include "log.hpp"
#include "reduce/combine.hpp"
#include "reduce/reduce.hpp"
#include "security/secret.hpp"

namespace backplane::core {
namespace {

// For store calls without a timeout: the store replies at once unless it is lost.
constexpr int64_t kStoreTimeout = INT64_C(60) * 1000000000;

int32_t combine_for_plugin(uint32_t dtype, uint32_t reduce_op, void* out, const void* left, const void* right,
                           uint64_t count) {
  if (!reducible(dtype, reduce_op)) return BP_INVALID;
  combine(dtype, reduce_op, out, left, right, count);
  return BP_OK;
}

int32_t divide_for_plugin(uint32_t dtype, void* data, uint64_t divisor, uint64_t count) {
  if (!reducible(dtype, BP_AVG) || divisor == 0) return BP_INVALID;
  divide(dtype, data, divisor, count);
  return BP_OK;
}

int32_t multiply_for_plugin(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count) {
  if (!reducible(dtype, BP_PREMUL_SUM)) return BP_INVALID;
  multiply(dtype, out, in, scalar, count);
  return BP_OK;
}

int32_t reduce_for_plugin(uint32_t dtype, uint32_t reduce_op, void* out, const void* const* inputs,
                          const void* const* scalars, uint64_t inputs_count, uint64_t divisor, uint64_t count) {
  if (!reducible(dtype, reduce_op) || inputs_count == 0 || (reduce_op == BP_AVG && divisor == 0)) return BP_INVALID;
  reduce(dtype, reduce_op, out, {inputs, scalars, inputs_count}, divisor, count);
  return BP_OK;
}

constexpr bp_reduce_api kReduce = {sizeof(bp_reduce_api), 0, combine_for_plugin, divide_for_plugin, multiply_for_plugin,
                                   reduce_for_plugin};
constexpr bp_security_api kSecure = {sizeof(bp_security_api), 1};
constexpr bp_security_api kInsecure = {sizeof(bp_security_api), 0};

std::string_view bytes(const void* data, uint64_t size) {
  return size == 0 ? std::string_view() : std::string_view(static_cast<const char*>(data), size);
}

void copy_out(const std::string& value, void* buffer, uint64_t capacity, uint64_t* size) {
  *size = value.size();
  if (value.size() > capacity) {
    fail(BP_RESOURCE, "the value has {} bytes, the buffer {}; pass a larger buffer", value.size(), capacity);
  }
  if (!value.empty()) std::memcpy(buffer, value.data(), value.size());
}

}  // namespace

// The functions of the table.
struct HostCalls {
  static Host& host(void* ctx) { return *static_cast<Host*>(ctx); }
  static Store& store(void* ctx) {
    if (!host(ctx).store_) fail(BP_UNSUPPORTED, "the host has no store before init; call store functions from init on");
    return *host(ctx).store_;
  }

  static void log(void* ctx, uint32_t level, const char* text) {
    Host& h = host(ctx);
    write_log(level, fmt::format("{}: {}", h.name_, text));
    if (level != BP_LOG_INFO || h.store_) return;
    const std::lock_guard lock(h.remarks_mutex_);
    h.remarks_ += fmt::format("{}{}", h.remarks_.empty() ? "" : "; ", text);
  }
  static int32_t abort_requested(void* ctx) { return host(ctx).abort_requested() ? 1 : 0; }

  static void report_failure(void* ctx, const bp_error* why) {
    Host& h = host(ctx);
    bp_error err;
    bp_error_init(&err);
    const int32_t status = guarded(&err, [&h, why] {
      const Error error(why->status == BP_OK || why->status == BP_AGAIN ? BP_INTERNAL : why->status, why->text,
                        why->peer_rank, why->native_code);
      const std::lock_guard lock(h.listener_mutex_);
      if (h.listener_) return h.listener_(error);
      static base::LogLimit limit;
      core::log(limit, BP_LOG_WARN, "{} reports a failure: {}", h.name_, error.what());
    });
    static base::LogLimit limit;
    if (status != BP_OK)
      core::log(limit, BP_LOG_ERROR, "{}", err.text);  // no thread or memory: the next operation fails
  }

  static int32_t set(void* ctx, const char* key, const void* value, uint64_t size, bp_error* err) {
    return guarded(err, [=] { store(ctx).set(key, bytes(value, size), Deadline::after(kStoreTimeout)); });
  }
  static int32_t get(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                     bp_error* err) {
    return guarded(err, [=] { copy_out(store(ctx).get(key, Deadline::after(timeout_ns)), buffer, capacity, size); });
  }
  static int32_t add(void* ctx, const char* key, int64_t delta, int64_t* sum, bp_error* err) {
    return guarded(err, [=] { *sum = store(ctx).add(key, delta, Deadline::after(kStoreTimeout)); });
  }
  static int32_t wait(void* ctx, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
    return guarded(err,
                   [=] { store(ctx).wait(std::vector<std::string>(keys, keys + count), Deadline::after(timeout_ns)); });
  }
  static int32_t compare_set(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                             const void* desired, uint64_t desired_size, void* buffer, uint64_t capacity,
                             uint64_t* size, bp_error* err) {
    return guarded(err, [=] {
      copy_out(store(ctx).compare_set(key, bytes(expected, expected_size), bytes(desired, desired_size),
                                      Deadline::after(kStoreTimeout)),
               buffer, capacity, size);
    });
  }
  static int32_t remove(void* ctx, const char* key, int32_t* existed, bp_error* err) {
    return guarded(err, [=] {
      const bool there = store(ctx).remove(key, Deadline::after(kStoreTimeout));
      if (existed != nullptr) *existed = there ? 1 : 0;
    });
  }
  static const void* extension(void* ctx, const char* id) {
    if (std::string_view(id) == BP_EXT_REDUCE) return &kReduce;
    if (std::string_view(id) == BP_EXT_SECURITY) return host(ctx).secure_ ? &kSecure : &kInsecure;
    if (std::string_view(id) == BP_EXT_NETWORK) return &host(ctx).network_;
    const auto offered = host(ctx).offered_.find(std::string_view(id));
    return offered == host(ctx).offered_.end() ? nullptr : offered->second;
  }
};

Host::Host(std::string name, std::shared_ptr<Store> store)
    : name_(std::move(name)),
      store_(std::move(store)),
      secure_(!secret_variable().empty()),
      store_address_(store_ == nullptr ? "" : store_->local_address()),
      network_{sizeof(bp_network_api), 0, store_address_.c_str()},
      table_{sizeof(bp_host),
             BP_ABI_MINOR,
             this,
             HostCalls::log,
             HostCalls::abort_requested,
             HostCalls::set,
             HostCalls::get,
             HostCalls::add,
             HostCalls::wait,
             HostCalls::compare_set,
             HostCalls::remove,
             HostCalls::extension,
             HostCalls::report_failure} {}

std::string Host::remarks() const {
  const std::lock_guard lock(remarks_mutex_);
  return remarks_;
}

void Host::on_failure(FailureListener listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
}

void Host::request_abort(const std::string& why) {
  aborting_.store(true, std::memory_order_release);
  if (store_) store_->interrupt(BP_CANCELLED, why);
}

}  // namespace backplane::core
