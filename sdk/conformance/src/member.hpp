// SPDX-License-Identifier: Apache-2.0
//
// One rank of a case, or an extra process: its number, the parameters of the run, and its random numbers.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "backplane/abi/abi.h"
#include "channel.hpp"
#include "world.hpp"

namespace backplane::conformance {

// The parameters that all ranks of a run share.
struct Run {
  World* world = nullptr;
  Channel channel{-1};
  uint64_t seed = 0;
  double timeout_scale = 1;
  double busy_factor = 1;               // of the machine when the case began
  std::string path;                     // of the plugin; empty if it is linked in
  const bp_plugin* plugin = nullptr;    // null in cases that load it themselves
  const bp_backend* backend = nullptr;  // the backend under test; null in those cases and in extra processes
  std::string backend_id;
  std::map<std::string, std::string> options;  // the subject's
  bool on_device = false;                      // as in Settings
};

class Member {
 public:
  Member(const Run& run, int32_t id)
      : run_(run),
        id_(id),
        shared_random_(run.seed),
        own_random_(run.seed * 1'000'003 + static_cast<uint64_t>(id) + 1) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int32_t id() const { return id_; }
  int32_t size() const { return run_.world->ranks(); }
  // Whether this is an extra process (Case::extra_processes), not a rank. Their ids start at size().
  bool is_extra() const { return id_ >= size(); }
  int32_t next() const { return (id_ + 1) % size(); }
  int32_t previous() const { return (id_ + size() - 1) % size(); }

  const Run& run() const { return run_; }
  World& world() const { return *run_.world; }
  const bp_plugin& plugin() const { return *run_.plugin; }
  const bp_backend& backend() const { return *run_.backend; }
  bool has_flag(uint32_t flag) const { return (backend().flags & flag) != 0; }
  // The backend's declaration of a native operation, or nullptr.
  const bp_capability* capability(uint32_t op) const;
  // The bit of the memory that operations get, as in bp_capability.
  uint64_t memory() const { return BP_BIT(run_.on_device ? BP_CUDA : BP_HOST); }

  // Random numbers derived from the seed: the same on all ranks, and different on each rank.
  std::mt19937_64& shared_random() { return shared_random_; }
  std::mt19937_64& random() { return own_random_; }

  // Multiplies a time by the user's factor for slow machines.
  Nanoseconds scaled(Nanoseconds time) const {
    return static_cast<Nanoseconds>(static_cast<double>(time) * run_.timeout_scale);
  }
  // The same for a limit that only ends hangs: longer on a busy machine.
  Nanoseconds hang_limit(Nanoseconds time) const {
    return static_cast<Nanoseconds>(static_cast<double>(scaled(time)) * run_.busy_factor);
  }

 private:
  const Run& run_;
  const int32_t id_;
  std::mt19937_64 shared_random_;
  std::mt19937_64 own_random_;
};

}  // namespace backplane::conformance
