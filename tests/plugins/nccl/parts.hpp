// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of parts of nccl.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "backplane/sdk/failure.hpp"

namespace backplane::nccl {

inline int32_t status_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const sdk::Failure& failure) {
    return failure.status();
  }
  return BP_OK;
}

// Counts the calls of a function of one of the tables.
template <auto Member>
struct Counting;
template <typename Table, typename Result, typename... Args, Result (*Table::*Member)(Args...)>
struct Counting<Member> {
  static void put_into(Table& table) {
    calls = 0;
    real = std::exchange(table.*Member, call);
  }
  static Result call(Args... args) {
    ++calls;
    return real(args...);
  }
  static inline Result (*real)(Args...) = nullptr;
  static inline int calls = 0;
};

}  // namespace backplane::nccl
