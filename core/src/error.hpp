// SPDX-License-Identifier: Apache-2.0
//
// Errors of the core are exceptions of one type. `guarded` turns them into a status and a bp_error at each boundary of
// the ABI; `throw_report` turns a plugin's status into an exception.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "backplane/abi/status.h"

namespace backplane::core {

class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& text, int32_t peer_rank = -1, int64_t native_code = 0)
      : std::runtime_error(text), status_(status), peer_rank_(peer_rank), native_code_(native_code) {}

  // One of BP_INVALID ... BP_INTERNAL.
  int32_t status() const noexcept { return status_; }
  // The rank that failed, -1 if unknown.
  int32_t peer_rank() const noexcept { return peer_rank_; }
  // errno or a library's error number, 0 if there is none.
  int64_t native_code() const noexcept { return native_code_; }

 private:
  int32_t status_;
  int32_t peer_rank_;
  int64_t native_code_;
};

// fail(BP_INVALID, "rank {} is not below {}", rank, size)
template <typename... Args>
[[noreturn]] void fail(int32_t status, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(status, fmt::format(format, std::forward<Args>(args)...));
}

// Throws the error that a function of the ABI reported. `what`, unless empty, precedes its text.
[[noreturn]] inline void throw_report(int32_t status, const bp_error& report, const std::string& what) {
  throw Error(status, what.empty() ? report.text : fmt::format("{}: {}", what, report.text), report.peer_rank,
              report.native_code);
}

// Runs `body` and turns an exception into a status and *err.
template <typename Body>
int32_t guarded(bp_error* err, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return BP_OK;
  } catch (const Error& e) {
    return bp_error_set(err, e.status(), e.native_code(), e.peer_rank(), e.what());
  } catch (const std::bad_alloc&) {
    return bp_error_set(err, BP_RESOURCE, 0, -1, "out of memory");
  } catch (const std::exception& e) {
    return bp_error_set(err, BP_INTERNAL, 0, -1, e.what());
  } catch (...) {
    return bp_error_set(err, BP_INTERNAL, 0, -1, "an exception of unknown type");
  }
}

}  // namespace backplane::core
