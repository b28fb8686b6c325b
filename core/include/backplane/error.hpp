// SPDX-License-Identifier: Apache-2.0
//
// Error, the exception that every failing call of the C++ API throws.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

#include "backplane/backplane.h"

namespace backplane {

// Who caused a failure. backplane/abi/status.h defines the values.
enum class Status : int32_t {
  kInvalid = BP_INVALID,
  kUnsupported = BP_UNSUPPORTED,
  kTimeout = BP_TIMEOUT,
  kCancelled = BP_CANCELLED,
  kPeerLost = BP_PEER_LOST,
  kResource = BP_RESOURCE,
  kInternal = BP_INTERNAL,
};

// "timeout" for kTimeout.
inline std::string name_of(Status status) { return bp_status_name(static_cast<int32_t>(status)); }

// what() is one sentence: what failed, where, why, and what to do.
class Error : public std::runtime_error {
 public:
  explicit Error(const bp_error& error)
      : std::runtime_error(error.text),
        status_(static_cast<Status>(error.status)),
        peer_rank_(error.peer_rank),
        native_code_(error.native_code),
        group_(error.group) {}

  Status status() const noexcept { return status_; }
  // The rank in the group that the failure concerns; -1 if unknown.
  int peer_rank() const noexcept { return peer_rank_; }
  // errno or the code of another library; 0 if there is none.
  int64_t native_code() const noexcept { return native_code_; }
  // The name of the process group that failed; empty if there is none.
  const std::string& group() const noexcept { return group_; }

 private:
  Status status_;
  int32_t peer_rank_;
  int64_t native_code_;
  std::string group_;
};

namespace detail {

// Throws a failure that the headers themselves detect.
[[noreturn]] inline void fail(Status status, const std::string& text, int peer_rank = -1) {
  bp_error err;
  bp_error_init(&err);
  bp_error_set(&err, static_cast<int32_t>(status), 0, peer_rank, text.c_str());
  throw Error(err);
}

// Calls function(..., &err) and throws the error that it reports. Returns BP_OK or BP_AGAIN.
template <typename... Parameters, typename... Arguments>
int32_t call(int32_t (*function)(Parameters...), Arguments... arguments) {
  bp_error err;
  bp_error_init(&err);
  const int32_t status = function(arguments..., &err);
  if (status != BP_OK && status != BP_AGAIN) throw Error(err);
  return status;
}

// A function of the program that the C API calls: runs `body` and converts an exception to a status.
template <typename Body>
int32_t guarded(bp_error* err, const Body& body) noexcept {
  try {
    body();
    return BP_OK;
  } catch (const Error& e) {
    return bp_error_set(err, static_cast<int32_t>(e.status()), e.native_code(), e.peer_rank(), e.what());
  } catch (const std::exception& e) {
    return bp_error_set(err, BP_INTERNAL, 0, -1, e.what());
  } catch (...) {
    return bp_error_set(err, BP_INTERNAL, 0, -1, "an exception of unknown type");
  }
}

// Copies a string of the C API and frees it.
inline std::string take(char* text, uint64_t size) {
  std::string result(text, size);
  bp_free(text);
  return result;
}
inline std::string take(char* text) {
  std::string result(text);
  bp_free(text);
  return result;
}

}  // namespace detail
}  // namespace backplane
