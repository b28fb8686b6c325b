// SPDX-License-Identifier: Apache-2.0
//
// Shared by the cases of memory: "backplane.memory/1" with C++ types.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "../case.hpp"

namespace backplane::conformance {

// An agent's table, and which memory of its is tried: the host's, or its device's.
struct Source {
  const bp_memory_api& api;
  uint32_t memory = BP_HOST;
  int32_t device = 0;
  std::shared_ptr<MirrorMemory> copies = nullptr;  // of a device: what copies there and back, until the agent is closed
};

// Leaves the body, as a skip, if there is no table or no such memory, and as a failure if the table is not whole.
Source memory_of(Rank& rank, Agent& agent);

// An allocation of an agent. The destructor releases it.
class Piece {
 public:
  Piece() = default;
  // Not ok() if there was none; from any thread.
  Piece(const Source& source, uint64_t bytes);
  // Leaves the body if there is none.
  Piece(Rank& rank, const Source& source, uint64_t bytes);
  Piece(Piece&& other) noexcept;
  Piece& operator=(Piece&& other) noexcept;
  ~Piece() { release(); }

  const Outcome& outcome() const { return outcome_; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  uint64_t size() const { return size_; }
  void release();

  static std::byte byte_at(uint64_t key, uint64_t i) { return static_cast<std::byte>(key * 31 + i % 251); }
  // Writes bytes that follow from the key; the first index at which some differ from them (-1: none does). Of a device:
  // until the agent is closed.
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

std::vector<Case> memory_buffer_cases();      // memory_buffers.cpp
std::vector<Case> memory_registered_cases();  // memory_registered.cpp

}  // namespace backplane::conformance
