// SPDX-License-Identifier: Apache-2.0
//
// A second definition of the wire format's header, so that a change of the format fails a test.
#pragma once

#include <cstdint>
#include <string>

namespace backplane::test {

struct WireHeader {
  static constexpr uint8_t kHello = 1;
  static constexpr uint8_t kFrame = 2;

  uint32_t magic = 0x325a5042;
  uint8_t version = 1;
  uint8_t kind = kHello;
  uint16_t reserved = 0;
  int32_t source = 1;
  uint32_t padding = 0;
  uint64_t token = 1;
  uint64_t value = 0;  // hello: the rank that is meant

  std::string text() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
};
static_assert(sizeof(WireHeader) == 32, "the documented size");

}  // namespace backplane::test
