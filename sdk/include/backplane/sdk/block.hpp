// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace backplane::sdk {

// Memory to receive into: not cleared, and aligned to 16 bytes. Much of it lies in huge pages where the system has
// them, because touching it for the first time, 4 KiB at a time, takes longer than to receive it. Throws
// std::bad_alloc.
class Block {
 public:
  explicit Block(uint64_t bytes) {
    constexpr uint64_t kHuge = uint64_t{2} << 20;
    const bool is_large = bytes >= 4 * kHuge;  // so that what is rounded up does not count
    const uint64_t size = is_large ? (bytes + kHuge - 1) / kHuge * kHuge : bytes;
    data_.reset(
        static_cast<std::byte*>(is_large ? std::aligned_alloc(kHuge, size) : std::malloc(size == 0 ? 1 : size)));
    if (!data_) throw std::bad_alloc();
    if (is_large) ::madvise(data_.get(), size, MADV_HUGEPAGE);  // it is as good without, only slower
  }
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace backplane::sdk
