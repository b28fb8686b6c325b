// SPDX-License-Identifier: Apache-2.0
//
// What the cases of memory have in common: "backplane.memory/1" with C++ types.
#pragma once

#include <cstddef>
#include <string>

#include "../case.hpp"

namespace backplane::conformance {

// The agent's table. Leaves the body, as a skip, if it has none or no memory of the host, and as a failure if it is not
// whole.
const bp_memory_api& memory_of(Rank& rank, Agent& agent);

// Memory of an agent's. Given back when it is destroyed, in a body that is being left, too.
class Piece {
 public:
  Piece() = default;
  // Not ok() if there was none; from any thread.
  Piece(const bp_memory_api& api, uint64_t bytes, uint32_t memory = BP_HOST);
  // Leaves the body if there is none.
  Piece(Rank& rank, const bp_memory_api& api, uint64_t bytes);
  Piece(Piece&& other) noexcept;
  Piece& operator=(Piece&& other) noexcept;
  ~Piece() { release(); }

  const Outcome& outcome() const { return outcome_; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  uint64_t size() const { return size_; }
  void release();

  // Writes bytes that follow from the key; the first index at which some differ from them (-1: none does).
  void fill(uint64_t key) const;
  int64_t first_wrong(uint64_t key) const;

 private:
  void (*release_)(bp_allocation*) = nullptr;  // outlives the table
  bp_allocation* allocation_ = nullptr;
  void* data_ = nullptr;
  uint64_t size_ = 0;
  Outcome outcome_;
};

// Leaves the body unless the piece still holds the bytes of the key.
void require_kept(Rank& rank, const Piece& piece, uint64_t key, const std::string& when);

std::vector<Case> memory_buffer_cases();  // memory_buffers.cpp

}  // namespace backplane::conformance
