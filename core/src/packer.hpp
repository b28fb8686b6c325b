// SPDX-License-Identifier: Apache-2.0
//
// Binary encoding of the stores: little-endian numbers; a text is its size (4 bytes) and its bytes; a frame is its size
// (4 bytes, not counting itself) and its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace backplane::core {

inline constexpr size_t kSizeBytes = 4;  // of the size before each frame

// Appends fields to a byte string.
class Packer {
 public:
  Packer& u8(uint8_t value);
  Packer& u32(uint32_t value);
  Packer& u64(uint64_t value);
  Packer& text(std::string_view value);
  Packer& raw(std::string_view value);
  const std::string& bytes() const { return bytes_; }
  // The packed bytes as a frame. `more` bytes of the frame are sent separately after it.
  std::string frame(size_t more = 0) const;

 private:
  std::string bytes_;
};

// Extracts fields. Never reads beyond the end: a missing field is 0 or empty, and complete() is false.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  uint8_t u8();
  uint32_t u32();
  uint64_t u64();
  std::string_view text();
  std::string_view raw(size_t size);
  std::string_view rest();
  // All fields were present and no bytes are left.
  bool complete() const { return good_ && bytes_.empty(); }
  bool good() const { return good_; }

 private:
  std::string_view bytes_;
  bool good_ = true;
};

// The size in the first 4 bytes.
size_t decode_size(const char* bytes);

}  // namespace backplane::core
