// SPDX-License-Identifier: Apache-2.0
//
// How a backend written in C++ fails: it throws sdk::Failure, and `guarded` turns that into the ABI's status at the one
// place where calls enter the plugin. Of other exceptions, std::bad_alloc and a std::system_error about descriptors,
// threads, memory or space count as BP_RESOURCE, all others as BP_INTERNAL.
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

class Failure : public std::runtime_error {
 public:
  // `text` is one sentence: what, where, what to do. `peer_rank` is the rank in this group that it is about, or -1.
  Failure(int32_t status, const std::string& text, int32_t peer_rank = -1, int64_t native_code = 0)
      : std::runtime_error(text), status_(status), peer_rank_(peer_rank), native_code_(native_code) {}
  explicit Failure(const bp_error& error) : Failure(error.status, error.text, error.peer_rank, error.native_code) {}

  int32_t status() const noexcept { return status_; }  // BP_INVALID ...
  int32_t peer_rank() const noexcept { return peer_rank_; }
  int64_t native_code() const noexcept { return native_code_; }

 private:
  int32_t status_;
  int32_t peer_rank_;
  int64_t native_code_;
};

namespace detail {

// Is it this machine that has run out of something (more of which may be there later), and no mistake of anybody?
inline bool is_resource_exhaustion(const std::error_code& code) noexcept {
  if (code.category() != std::system_category() && code.category() != std::generic_category()) return false;
  constexpr int kWants[] = {EMFILE, ENFILE, EAGAIN, ENOMEM, ENOSPC};
  return std::find(std::begin(kWants), std::end(kWants), code.value()) != std::end(kWants);
}

}  // namespace detail

// Runs body() -> status; an exception becomes a status and fills in *err.
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
