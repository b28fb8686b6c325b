// SPDX-License-Identifier: Apache-2.0
//
// Splits received bytes into frames. Memory grows with the bytes that have arrived, not with the announced sizes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "packer.hpp"

namespace backplane::core {

class FrameBuffer {
 public:
  void append(std::string_view bytes) {
    bytes_.erase(0, begin_);
    begin_ = 0;
    bytes_ += bytes;
  }

  // Bytes that are not taken yet.
  size_t size() const { return bytes_.size() - begin_; }
  // The size of the next frame, once its size has arrived.
  std::optional<size_t> announced() const {
    if (size() < kSizeBytes) return std::nullopt;
    return decode_size(bytes_.data() + begin_);
  }

  // Takes the next frame if it is complete. Its bytes may be changed, and are valid until `append` or `release_memory`.
  std::optional<std::span<char>> take() {
    const auto frame = announced();
    if (!frame || size() - kSizeBytes < *frame) return std::nullopt;
    char* const body = bytes_.data() + begin_ + kSizeBytes;
    begin_ += kSizeBytes + *frame;
    return std::span(body, *frame);
  }

  // Frees the memory if no bytes are left, because most connections are idle most of the time.
  void release_memory() {
    if (size() > 0) return;
    bytes_ = std::string();
    begin_ = 0;
  }

 private:
  std::string bytes_;
  size_t begin_ = 0;  // of the bytes that are not taken
};

}  // namespace backplane::core
