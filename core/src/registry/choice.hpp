// SPDX-License-Identifier: Apache-2.0
//
// What `auto` stands for: the first backend of an order of preference that every rank can use or, on one host for which
// there is a tuning table, the fastest by that. All ranks choose the same, whatever each of them sees.
#pragma once

#include <string>
#include <vector>

#include "registry/registry.hpp"
#include "registry/tuning.hpp"
#include "store/store.hpp"

namespace backplane::core {

// A backend that one rank sees.
struct Candidate {
  std::string id;
  std::string objection;      // why this rank cannot use it; empty: it can
  bool is_autonomous = true;  // makes progress without being waited for
  std::string device = {};    // set: it serves memory of devices, and would use this one, which no two ranks may share
  std::string remark = {};    // what its probe had to say about this machine
};

// Is the backend viable here, for a group of so many ranks (0: not known)? Throws core::Error with the reason if not.
// What it remarks about this machine, if anything.
std::string probe_for(const Member& member, int32_t world_size);

// All that join processes, the preferred ones first. Loads and probes each, for a group of `world_size`. `device`:
// ordinal of the one that this rank computes on, -1: none.
std::vector<Candidate> candidates(Registry& registry, int32_t world_size, int32_t device);

// Processes with the same one can share memory: they have the kernel, its process ids and the user in common.
std::string shared_place();

struct Choice {
  std::string id;
  std::string reason;                      // one sentence for people
  std::vector<Exemption> exemptions = {};  // what others serve, by the tuning table
  std::string for_devices = {};            // what serves the memory of devices; empty: nothing that all can use
};

// The same for a world of one rank, which has `id` already: its memory of devices.
std::string choose_for_devices(const std::vector<Candidate>& mine);

// Called by all ranks with a store of their own for it, each with what it sees. Waits until all have said so. Throws
// BP_UNSUPPORTED, the same on all, if there is nothing that all can use. Rank 0's tuning table (tuning.hpp; its text,
// or nothing) is everybody's, and counts if all ranks are in one place, as it was measured in one. Store calls per
// rank: one for each candidate and three more; twice as many for the last to come.
Choice agree_on_backend(Store& store, int32_t rank, int32_t world_size, const std::vector<Candidate>& mine,
                        const std::string& place, const std::string& tuning, Deadline deadline);

}  // namespace backplane::core
