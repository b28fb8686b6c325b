// SPDX-License-Identifier: Apache-2.0
//
// Shared by the cases of memory: "backplane.memory/1" with C++ types.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "../case.hpp"

namespace backplane::conformance {

// An agent's table, and the kind of memory that is tested: the host's, or the device's.
struct Source {
  const bp_memory_api& api;
  uint32_t memory = BP_HOST;
  int32_t device = 0;
  std::shared_ptr<MirrorMemory> copies = nullptr;  // copies to and from a device; valid until the agent is closed
};

// Skips the case if there is no table or no such memory. Fails it if the table is incomplete.
Source memory_of(Rank& rank, Agent& agent);

// An allocation of an agent. The destructor releases it.
class Piece {
 public:
  Piece() = default;
  // ok() is false if the allocation failed. Any thread.
  Piece(const Source& source, uint64_t bytes);
  // Leaves the body if the allocation fails.
  Piece(Rank& rank, const Source& source, uint64_t bytes);
  Piece(Piece&& other) noexcept;
  Piece& operator=(Piece&& other) noexcept;
  ~Piece() { release(); }

  const Outcome& outcome() const { return outcome_; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  uint64_t size() const { return size_; }
  void release();

  static std::byte byte_at(uint64_t key, uint64_t i) { return static_cast<std::byte>(key * 31 + i % 251); }
  // Writes bytes derived from the key; and the first index at which the bytes differ from them, or -1. For device
  // memory only until the agent is closed.
  void fill(uint64_t key) const;
  int64_t first_wrong(uint64_t key) const;

 private:
  void (*release_)(bp_allocation*) = nullptr;  // outlives the table
  bp_allocation* allocation_ = nullptr;
  void* data_ = nullptr;
  uint64_t size_ = 0;
  std::shared_ptr<MirrorMemory> copies_;
  Outcome outcome_;
};

// Leaves the body unless the piece still holds the bytes of the key.
void require_kept(Rank& rank, const Piece& piece, uint64_t key, const std::string& when);

}  // namespace backplane::conformance
