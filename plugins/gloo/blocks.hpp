// SPDX-License-Identifier: Apache-2.0
//
// Blocks of v-variants. The ABI allows any displacements; gloo wants contiguous blocks.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace backplane::gloo {

class Blocks {
 public:
  Blocks(const uint64_t* counts, const uint64_t* displs, int blocks, uint64_t element) {
    for (int i = 0; i < blocks; ++i) {
      if (counts[i] > 0 && displs[i] * element != total_) contiguous_ = false;
      bytes_.push_back(counts[i] * element);
      offsets_.push_back(displs[i] * element);
      total_ += bytes_.back();
    }
  }

  size_t size() const { return bytes_.size(); }
  uint64_t bytes(size_t block) const { return bytes_[block]; }
  uint64_t offset(size_t block) const { return offsets_[block]; }
  uint64_t total() const { return total_; }
  bool contiguous() const { return contiguous_; }  // from offset 0, in order, without gaps
  template <typename T>
  std::vector<T> sizes() const {
    return std::vector<T>(bytes_.begin(), bytes_.end());
  }

 private:
  std::vector<uint64_t> bytes_;
  std::vector<uint64_t> offsets_;
  uint64_t total_ = 0;
  bool contiguous_ = true;
};

// The user's memory if its blocks are contiguous, else a contiguous copy. `blocks` must outlive this object.
class ContiguousBlocks {
 public:
  ContiguousBlocks(const Blocks& blocks, void* user, bool always_copy = false)
      : blocks_(blocks), user_(static_cast<char*>(user)) {
    if (always_copy || !blocks.contiguous()) copy_.reset(new char[blocks.total()]);
  }

  bool is_direct() const { return copy_ == nullptr; }
  char* data() { return is_direct() ? user_ : copy_.get(); }
  void pack() {
    for_each([](char* copy, char* user, uint64_t bytes) { std::memcpy(copy, user, bytes); });
  }
  void unpack() {
    for_each([](char* copy, char* user, uint64_t bytes) { std::memcpy(user, copy, bytes); });
  }

 private:
  template <typename Body>
  void for_each(Body body) {
    if (is_direct()) return;
    char* copy = copy_.get();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_.bytes(i) > 0) body(copy, user_ + blocks_.offset(i), blocks_.bytes(i));
      copy += blocks_.bytes(i);
    }
  }

  const Blocks& blocks_;
  char* const user_;
  std::unique_ptr<char[]> copy_;
};

}  // namespace backplane::gloo
