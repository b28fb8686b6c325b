// SPDX-License-Identifier: Apache-2.0
//
// The header of the wire format, written down a second time so that a change of it does not go unnoticed.
#pragma once

#include <cstdint>
#include <string>

namespace backplane::test {

struct WireHeader {
  static constexpr uint8_t kHello = 1;

  uint32_t magic = 0x315a5042;
  uint8_t version = 1;
  uint8_t kind = kHello;
  uint16_t reserved = 0;
  int32_t source = 1;
  uint32_t credit = 0;
  uint64_t token = 1;
  uint64_t tag = 0;
  uint64_t size = 0;
  uint64_t id = 0;
  uint64_t target = 0;  // hello: the rank that is meant
  uint64_t offset = 0;

  std::string text() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
};
static_assert(sizeof(WireHeader) == 64, "the documented size");

}  // namespace backplane::test
