// SPDX-License-Identifier: Apache-2.0
//
// Error reporting of C++ backends: a backend throws sdk::Failure, and `guarded` translates it to the ABI's status where
// calls enter the plugin. std::bad_alloc, and std::system_error about exhausted descriptors, threads, memory or disk
// space, become BP_RESOURCE. All other exceptions become BP_INTERNAL.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "backplane/abi/abi.h"

namespace backplane::sdk {

namespace detail {
// Made when the plugin is loaded: copies of it need no memory.
inline const std::runtime_error kNoMemoryForText("a failure occurred, and there was no memory for its text");
}  // namespace detail

class Failure : public std::runtime_error {
 public:
  // `text` is one sentence: what failed, where, and what to do. `peer_rank` is the rank in this group that the failure
  // concerns, or -1.
  Failure(int32_t status, const std::string& text, int32_t peer_rank = -1, int64_t native_code = 0)
      : std::runtime_error(text), status_(status), peer_rank_(peer_rank), native_code_(native_code) {}
  explicit Failure(const bp_error& error) : Failure(error.status, error.text, error.peer_rank, error.native_code) {}

  // The same for functions that cannot fail: without memory it has another text.
  static Failure copy_of(const bp_error& error) noexcept {
    try {
      return Failure(error);
    } catch (const std::bad_alloc&) {
      return Failure(detail::kNoMemoryForText, error);
    }
  }

  int32_t status() const noexcept { return status_; }  // BP_INVALID ...
  int32_t peer_rank() const noexcept { return peer_rank_; }
  int64_t native_code() const noexcept { return native_code_; }

 private:
  Failure(const std::runtime_error& text, const bp_error& error) noexcept
      : std::runtime_error(text), status_(error.status), peer_rank_(error.peer_rank), native_code_(error.native_code) {}

  int32_t status_;
  int32_t peer_rank_;
  int64_t native_code_;
};

namespace detail {

// Whether the error means that this machine has run out of a resource, which may be available again later.
inline bool is_resource_exhaustion(const std::error_code& code) noexcept {
  if (code.category() != std::system_category() && code.category() != std::generic_category()) return false;
  constexpr int kWants[] = {EMFILE, ENFILE, EAGAIN, ENOMEM, ENOSPC};
  return std::find(std::begin(kWants), std::end(kWants), code.value()) != std::end(kWants);
}

}  // namespace detail

// Runs body(), which returns a status. Translates an exception to a status and fills in *err.
template <typename Body>
int32_t guarded(bp_error* err, Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (const Failure& e) {
    return bp_error_set(err, e.status(), e.native_code(), e.peer_rank(), e.what());
  } catch (const std::bad_alloc&) {
    return bp_error_set(err, BP_RESOURCE, 0, -1, "out of memory");
  } catch (const std::system_error& e) {
    const int32_t status = detail::is_resource_exhaustion(e.code()) ? BP_RESOURCE : BP_INTERNAL;
    return bp_error_set(err, status, e.code().value(), -1, e.what());
  } catch (const std::exception& e) {
    return bp_error_set(err, BP_INTERNAL, 0, -1, e.what());
  } catch (...) {
    return bp_error_set(err, BP_INTERNAL, 0, -1, "an exception of unknown type");
  }
}

}  // namespace backplane::sdk
