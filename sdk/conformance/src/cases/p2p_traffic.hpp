// SPDX-License-Identifier: Apache-2.0
//
// Shared by the cases on messages: buffers with guards, contents that identify their message, and an agent whose
// operations have a deadline well before that of the case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../proc.hpp"
#include "../rank.hpp"

namespace backplane::conformance {

constexpr Nanoseconds kWaitLimit = 8 * kSecond;  // for any one wait of these cases; scaled

// Memory with guards before and behind it. `skew`: how far from a multiple of 64 it begins.
class Guarded {
 public:
  explicit Guarded(uint64_t bytes = 0, uint64_t skew = 0);
  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }
  // "" if the guards are intact, else the position and the bytes.
  std::string damage() const;

 private:
  std::unique_ptr<std::byte[]> memory_;
  uint64_t bytes_ = 0;
  uint64_t total_ = 0;
  std::byte* data_ = nullptr;
};

// Fills `data` with a pattern derived from `name`.
void fill_pattern(void* data, uint64_t bytes, uint64_t name);
// The first index at which `data` differs from that pattern, or -1.
int64_t first_wrong_byte(const void* data, uint64_t bytes, uint64_t name);
uint64_t message_name(int32_t source, int32_t destination, uint64_t tag, uint64_t number);

// An agent for the case's group or a part of it. Returns when all ranks have it, so that none leaves it
// while another is still in init.
std::unique_ptr<Agent> open_together(Rank& rank, const Plan& plan);

// A rank and its agent, with verified sends and receives.
class VerifiedAgent {
 public:
  explicit VerifiedAgent(Rank& rank, const Plan& plan = {}) : rank_(rank), agent_(open_together(rank, plan)) {}

  Rank& rank() { return rank_; }
  Agent& agent() { return *agent_; }

  // Submits an operation with the deadline set. With BP_OP_SYNC it may have ended on return.
  Pending send(int32_t peer, uint64_t tag, const void* data, uint64_t bytes, uint64_t flags = 0);
  Pending recv(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result = nullptr, uint64_t flags = 0);

  // Wait for the end, and leave the body if it is late. The first also requires BP_OK.
  void finish(Pending& pending, const std::string& what);
  Outcome end(Pending& pending, const std::string& what);
  void finish_all(std::vector<Pending>& pending, const std::string& what);

  // Sends and receives a message at the same time, since the send may wait for its recv.
  void exchange(int32_t to, const Guarded& output, int32_t from, Guarded& input, uint64_t tag,
                bp_result* result = nullptr);
  // Sends a message to each rank and receives one from each. On return all earlier messages have arrived everywhere.
  void round(uint64_t tag);

  // Leaves the body if the contents, the guards or the report are wrong.
  void expect(const std::string& what, const void* data, uint64_t bytes, uint64_t name);
  void expect_guards(const std::string& what, const Guarded& buffer);
  void expect_report(const std::string& what, const bp_result& result, int32_t source, uint64_t bytes);

 private:
  Rank& rank_;
  std::unique_ptr<Agent> agent_;
};

// Available memory of the machine in bytes; 0 if unknown.
uint64_t available_bytes();

}  // namespace backplane::conformance
