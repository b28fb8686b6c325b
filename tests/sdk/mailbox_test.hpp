// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "backplane/sdk/mailbox.hpp"

namespace backplane::sdk {

inline Mailbox::Bytes bytes(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// A receive and its buffer.
struct Slot {
  explicit Slot(size_t capacity = 64) : buffer(capacity, '\0') {}
  Receive from(int32_t source, uint64_t tag) {
    return {source, tag, buffer.data(), buffer.size(), &result, nullptr, 0};
  }
  std::string text() const { return buffer.substr(0, result.bytes); }

  std::string buffer;
  bp_result result = {sizeof(bp_result), -7, 0, 0};
};

inline int32_t status_of(Completion& completion) {
  try {
    return completion.wait(0) ? BP_OK : BP_AGAIN;
  } catch (const Failure& failure) {
    return failure.status();
  }
}

}  // namespace backplane::sdk
