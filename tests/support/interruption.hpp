// SPDX-License-Identifier: Apache-2.0
//
// An interruption hook that ends one call of a thread that asks for it.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "support/groups.hpp"

namespace backplane::test {

// Interrupts this thread's next blocking call, once.
inline thread_local bool wants_interruption = false;
inline thread_local bool is_rank = false;
inline std::atomic<int> ranks_asked = 0;
inline std::atomic<int> others_asked = 0;

inline int32_t interrupt_hook(void*) {
  ++(is_rank ? ranks_asked : others_asked);
  return std::exchange(wants_interruption, false) ? 1 : 0;
}

class Hooked {
 public:
  Hooked() { bp_set_interrupt_hook(interrupt_hook, nullptr); }
  ~Hooked() { bp_set_interrupt_hook(nullptr, nullptr); }
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;
};

// The call must end by the interruption, long before its own timeout.
template <typename Call>
void expect_interrupted(const std::string& what, const Call& call, const char* says = "interrupted by the program") {
  wants_interruption = true;
  const auto begin = std::chrono::steady_clock::now();
  std::string text;
  EXPECT_EQ(failure_of(call, &text), Status::kCancelled) << what << ": " << text;
  EXPECT_NE(text.find(says), std::string::npos) << what << ": " << text;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << what;
  EXPECT_FALSE(wants_interruption) << what << ": nobody was asked";
  wants_interruption = false;
}

}  // namespace backplane::test
