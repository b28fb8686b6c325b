// SPDX-License-Identifier: Apache-2.0
//
// "backplane.interrupt/1" with C++ types, for groups whose submit blocks with BP_OP_SYNC.
//
//     sdk::Interruption interruption_;
//     const void* extension(std::string_view id) override {
//       return id == BP_EXT_INTERRUPT ? interruption_.table() : nullptr;
//     }
//     ... and in each wait inside submit, at least every 100 ms, without a lock:
//     if (interruption_.asked()) throw interruption_.failure();
#pragma once

#if __has_include("backplane/abi/ext/interrupt.h")  // missing from the C headers of 1.0
#include "backplane/abi/ext/interrupt.h"
#include "failure.hpp"

namespace backplane::sdk {

// The function by which the program interrupts. Asked from any thread once it is set, which happens before the first
// operation.
class Interruption {
 public:
  Interruption() = default;
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // The value for the group's extension(). Valid as long as this object.
  const bp_interrupt_api* table() const { return &table_; }
  // Whether the program interrupts this thread. Runs handlers of the program. False if nothing was set.
  bool asked() const { return interrupted_ != nullptr && interrupted_(to_) != 0; }
  static Failure failure() { return {BP_CANCELLED, "interrupted by the program"}; }

 private:
  static void set(void* self, int32_t (*interrupted)(void* to), void* to) noexcept {
    auto& that = *static_cast<Interruption*>(self);
    that.interrupted_ = interrupted;
    that.to_ = to;
  }

  const bp_interrupt_api table_ = {sizeof(bp_interrupt_api), 0, this, set};
  int32_t (*interrupted_)(void* to) = nullptr;
  void* to_ = nullptr;
};

}  // namespace backplane::sdk
#endif
