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

constexpr Nanoseconds kEnough = 8 * kSecond;  // for any one wait of these cases; scaled

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

// A message's contents follow from a number.
void fill_pattern(void* data, uint64_t bytes, uint64_t name);
// -1 if `data` is that pattern from its beginning, else the first index that is wrong.
int64_t first_wrong_byte(const void* data, uint64_t bytes, uint64_t name);
uint64_t message_name(int32_t source, int32_t destination, uint64_t tag, uint64_t number);

// An agent for the case's group or a part of it. The whole group goes on together, so that no rank can have left it
// while another one is still in init.
std::unique_ptr<Agent> open_together(Rank& rank, const Plan& plan);

// A rank with an agent that talks.
class Talk {
 public:
  explicit Talk(Rank& rank, const Plan& plan = {}) : rank_(rank), agent_(open_together(rank, plan)) {}

  Rank& rank() { return rank_; }
  Agent& agent() { return *agent_; }

  // Submits a message, with the deadline set; flags may be BP_OP_SYNC (then it may be over on return).
  Pending send(int32_t peer, uint64_t tag, const void* data, uint64_t bytes, uint64_t flags = 0);
  Pending recv(int32_t peer, uint64_t tag, void* data, uint64_t bytes, bp_result* result = nullptr, uint64_t flags = 0);

  // Waits for the end, and leaves the body if it does not come in time. The first demands BP_OK.
  void finish(Pending& pending, const std::string& what);
  Outcome end(Pending& pending, const std::string& what);
  void finish_all(std::vector<Pending>& pending, const std::string& what);

  // Sends a message and receives one, at the same time: the one may wait for the other.
  void exchange(int32_t to, const Guarded& output, int32_t from, Guarded& input, uint64_t tag,
                bp_result* result = nullptr);
  // A message to every rank and one from every rank; all that was said before has arrived everywhere when it returns.
  void round(uint64_t tag);

  // Leaves the body if the contents, the guards or the report are not what they should be.
  void expect(const std::string& what, const void* data, uint64_t bytes, uint64_t name);
  void expect_guards(const std::string& what, const Guarded& buffer);
  void expect_report(const std::string& what, const bp_result& result, int32_t source, uint64_t bytes);

 private:
  Rank& rank_;
  std::unique_ptr<Agent> agent_;
};

// Memory that the machine can still give, in bytes; 0 if it cannot be read.
uint64_t available_bytes();

}  // namespace backplane::conformance
