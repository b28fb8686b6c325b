// SPDX-License-Identifier: Apache-2.0
#include "host.hpp"

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "arithmetic.hpp"

namespace backplane::conformance {

bool named_secret() {
  const auto named = [](const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && *value != '\0';
  };
  return named("BACKPLANE_SECRET_FILE") || named("BACKPLANE_SECRET_FD");
}

struct Host::Functions {
  static Host& self(void* ctx) { return *static_cast<Host*>(ctx); }
  static std::string place(void* ctx, const char* key) { return self(ctx).space_ + "/" + key; }

  static void log(void* ctx, uint32_t level, const char* text) { self(ctx).log_(level, text == nullptr ? "" : text); }
  static int32_t abort_requested(void* ctx) { return self(ctx).abort_.load() ? 1 : 0; }

  static int32_t cancelled(bp_error* err) {
    return bp_error_set(err, BP_CANCELLED, 0, -1, "the group is being aborted or destroyed");
  }

  static int32_t copy_out(std::string_view value, void* buffer, uint64_t capacity, uint64_t* size, bp_error* err) {
    if (size != nullptr) *size = value.size();
    if (value.size() > capacity) return bp_error_set(err, BP_RESOURCE, 0, -1, "the value is larger than the buffer");
    if (!value.empty()) std::memcpy(buffer, value.data(), value.size());
    return BP_OK;
  }

  static int32_t set(void* ctx, const char* key, const void* value, uint64_t size, bp_error* err) {
    if (abort_requested(ctx) != 0) return cancelled(err);
    self(ctx).world_.set(place(ctx, key), {static_cast<const char*>(value), size});
    return BP_OK;
  }

  static int32_t await(void* ctx, const char* key, std::string& value, int64_t timeout_ns, bp_error* err) {
    const auto wait =
        self(ctx).world_.get(place(ctx, key), value, timeout_ns, [ctx] { return abort_requested(ctx) != 0; });
    if (wait == World::Wait::kGivenUp) return cancelled(err);
    if (wait == World::Wait::kDone) return BP_OK;
    return bp_error_set(err, BP_TIMEOUT, 0, -1, (std::string("the key ") + key + " was not set in time").c_str());
  }

  static int32_t get(void* ctx, const char* key, void* buffer, uint64_t capacity, uint64_t* size, int64_t timeout_ns,
                     bp_error* err) {
    std::string value;
    const int32_t status = await(ctx, key, value, timeout_ns, err);
    return status == BP_OK ? copy_out(value, buffer, capacity, size, err) : status;
  }

  static int32_t add(void* ctx, const char* key, int64_t delta, int64_t* sum, bp_error* err) {
    if (abort_requested(ctx) != 0) return cancelled(err);
    const int64_t result = self(ctx).world_.add(place(ctx, key), delta);
    if (sum != nullptr) *sum = result;
    return BP_OK;
  }

  static int32_t wait(void* ctx, const char* const* keys, uint64_t count, int64_t timeout_ns, bp_error* err) {
    const Nanoseconds deadline = timeout_ns < 0 ? 0 : now() + timeout_ns;
    std::string value;
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t left = timeout_ns < 0 ? BP_NO_TIMEOUT : std::max<int64_t>(0, deadline - now());
      const int32_t status = await(ctx, keys[i], value, left, err);
      if (status != BP_OK) return status;
    }
    return BP_OK;
  }

  static int32_t compare_set(void* ctx, const char* key, const void* expected, uint64_t expected_size,
                             const void* desired, uint64_t desired_size, void* buffer, uint64_t capacity,
                             uint64_t* size, bp_error* err) {
    if (abort_requested(ctx) != 0) return cancelled(err);
    const std::string value =
        self(ctx).world_.compare_set(place(ctx, key), {static_cast<const char*>(expected), expected_size},
                                     {static_cast<const char*>(desired), desired_size});
    return copy_out(value, buffer, capacity, size, err);
  }

  static int32_t erase(void* ctx, const char* key, int32_t* existed, bp_error* err) {
    if (abort_requested(ctx) != 0) return cancelled(err);
    const bool there = self(ctx).world_.erase(place(ctx, key));
    if (existed != nullptr) *existed = there ? 1 : 0;
    return BP_OK;
  }

  static void report_failure(void* ctx, const bp_error* why) {
    const std::lock_guard lock(self(ctx).reports_mutex_);
    self(ctx).reports_.push_back(*why);
  }

  static int32_t divide_sum(uint32_t dtype, void* data, uint64_t divisor, uint64_t count) {
    if (!goes_together(dtype, BP_AVG) || divisor == 0) return BP_INVALID;
    divide(dtype, data, count, divisor);
    return BP_OK;
  }

  static int32_t multiply_input(uint32_t dtype, void* out, const void* in, const void* scalar, uint64_t count) {
    if (!goes_together(dtype, BP_PREMUL_SUM)) return BP_INVALID;
    if (out != in) std::memcpy(out, in, count * bp_dtype_size(dtype));
    multiply(dtype, out, count, scalar);
    return BP_OK;
  }

  static int32_t reduce_all(uint32_t dtype, uint32_t reduce_op, void* out, const void* const* inputs,
                            const void* const* scalars, uint64_t inputs_count, uint64_t divisor, uint64_t count) {
    if (!goes_together(dtype, reduce_op) || inputs_count == 0 || (reduce_op == BP_AVG && divisor == 0)) {
      return BP_INVALID;
    }
    reduce(dtype, reduce_op, out, inputs, scalars, inputs_count, divisor, count);
    return BP_OK;
  }

  static const void* extension(void* ctx, const char* id) {
    static const bp_reduce_api reduce = {sizeof(bp_reduce_api), 0, combine, divide_sum, multiply_input, reduce_all};
    static const bp_security_api with = {sizeof(bp_security_api), 1};
    static const bp_security_api without = {sizeof(bp_security_api), 0};
    if (id == nullptr) return nullptr;
    if (std::strcmp(id, BP_EXT_REDUCE) == 0) return &reduce;
    if (std::strcmp(id, BP_EXT_SECURITY) != 0) return nullptr;
    return self(ctx).secure_ ? &with : &without;
  }
};

Host::Host(World& world, std::string space, LogSink log, bool secure)
    : world_(world),
      space_(std::move(space)),
      secure_(secure),
      log_(std::move(log)),
      table_{sizeof(bp_host),
             BP_ABI_MINOR,
             this,
             Functions::log,
             Functions::abort_requested,
             Functions::set,
             Functions::get,
             Functions::add,
             Functions::wait,
             Functions::compare_set,
             Functions::erase,
             Functions::extension,
             Functions::report_failure} {}

}  // namespace backplane::conformance
