// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD that makes faults of a host, each if its environment variable is set:
//
//   TEST_CLOCK_SHIFT   seconds by which the wall clock is ahead
//   TEST_CLOCK_ALONE   the clock counts as not synchronised
//   TEST_VERSION       the version of Backplane
#include <dlfcn.h>
#include <sys/timex.h>
#include <time.h>

#include <cstdlib>

namespace {

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
  const char* const shift = std::getenv("TEST_CLOCK_SHIFT");
  const int code = real(clock, time);
  if (code == 0 && clock == CLOCK_REALTIME && shift != nullptr) time->tv_sec += std::atoi(shift);
  return code;
}

int adjtimex(timex* state) noexcept {
  if (std::getenv("TEST_CLOCK_ALONE") != nullptr) return TIME_ERROR;
  return next<int(timex*)>("adjtimex")(state);
}

const char* bp_version() {
  const char* const version = std::getenv("TEST_VERSION");
  return version != nullptr ? version : next<const char*()>("bp_version")();
}
}
