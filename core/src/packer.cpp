// SPDX-License-Identifier: Apache-2.0
#include "packer.hpp"

namespace backplane::core {

Packer& Packer::u8(uint8_t value) {
  bytes_ += static_cast<char>(value);
  return *this;
}

Packer& Packer::u32(uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) u8(static_cast<uint8_t>(value >> shift));
  return *this;
}

Packer& Packer::u64(uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) u8(static_cast<uint8_t>(value >> shift));
  return *this;
}

Packer& Packer::text(std::string_view value) { return u32(static_cast<uint32_t>(value.size())).raw(value); }

Packer& Packer::raw(std::string_view value) {
  bytes_ += value;
  return *this;
}

std::string Packer::frame(size_t more) const {
  Packer framed;
  framed.u32(static_cast<uint32_t>(bytes_.size() + more)).raw(bytes_);
  return framed.bytes_;
}

std::string_view Unpacker::raw(size_t size) {
  if (size > bytes_.size()) {
    good_ = false;
    bytes_ = {};
    return {};
  }
  const std::string_view taken = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return taken;
}

std::string_view Unpacker::rest() { return raw(bytes_.size()); }

uint8_t Unpacker::u8() {
  const auto taken = raw(1);
  return taken.empty() ? uint8_t{0} : static_cast<uint8_t>(taken[0]);
}

uint32_t Unpacker::u32() {
  uint32_t value = 0;
  for (int shift = 0; shift < 32; shift += 8) value |= uint32_t{u8()} << shift;
  return value;
}

uint64_t Unpacker::u64() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 8) value |= uint64_t{u8()} << shift;
  return value;
}

std::string_view Unpacker::text() { return raw(u32()); }

size_t decode_size(const char* bytes) { return Unpacker(std::string_view(bytes, kSizeBytes)).u32(); }

}  // namespace backplane::core
