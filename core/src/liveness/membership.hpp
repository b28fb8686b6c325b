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

// Why somebody is not there any more. A rank departs by withdrawing; one whose process or connection ends before that,
// or from which nothing is heard for too long, is lost.
enum class Fate : uint8_t { kLost = 1, kDeparted = 2 };
using Fates = std::map<int32_t, Fate>;  // by rank

// News of a death.
struct Loss {
  int32_t rank = -1;   // of the scope; of a lost store: the rank that served it, -1 if none did
  bool store = false;  // the store itself is gone, so that no further death is heard of
  std::string text;    // "rank 3 (host, pid 17) is lost: its process ended", the same for all who are told
};

struct Enrolment {
  std::string scope;  // keeps groups apart that number their ranks each in their own way; a prefix store adds its own
  int32_t rank = -1;  // -1: only to be told of the losses of others
  std::string identity;  // "host, pid 17"
};

// A rank's place among those who watch over each other. Destroying it withdraws the rank, which takes at most a second,
// and waits for a callback that is running.
class Membership {
 public:
  virtual ~Membership() = default;
  // Does this store notice losses at all? One in the memory of a process does not.
  virtual bool watches() const = 0;
  // All who are lost or have departed by now.
  virtual Fates fates(Deadline deadline) = 0;
};

}  // namespace backplane::core
