// SPDX-License-Identifier: Apache-2.0
//
// Membership of ranks in a scope: who takes part, who has left, and who is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "deadline.hpp"

namespace backplane::core {

inline constexpr size_t kMaxScopeSize = 4096;    // bytes
inline constexpr size_t kMaxIdentitySize = 512;  // "host, pid 17"
inline constexpr size_t kMaxNoticeSize = 1024;   // the sentence about a lost rank

// Why a rank is no longer a member. It has left if it withdrew. It is lost if its process or connection ended before
// that, or if it sent no heartbeat for too long.
enum class Absence : uint8_t { kLost = 1, kLeft = 2 };
using Absences = std::map<int32_t, Absence>;  // by rank

// The notice that a rank, or the store, is lost.
struct Loss {
  int32_t rank = -1;   // of the scope; of a lost store: the rank that served it, -1 if none did
  bool store = false;  // the store itself is lost: no further losses are reported
  std::string text;    // "rank 3 (host, pid 17) is lost: its process ended", the same on all ranks
};

struct Enrolment {
  std::string scope;     // a namespace of rank numbers; a prefix store adds its prefix
  int32_t rank = -1;     // -1: only receives notices
  std::string identity;  // "host, pid 17"
};

// The membership of a rank in a scope. The destructor withdraws the rank within a second and waits for a running
// callback.
class Membership {
 public:
  virtual ~Membership() = default;
  // Whether the store detects losses. One in the memory of a process does not.
  virtual bool watches() const = 0;
  // All ranks that are lost or have left.
  virtual Absences absences(Deadline deadline) = 0;
};

}  // namespace backplane::core
