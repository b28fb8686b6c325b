// SPDX-License-Identifier: Apache-2.0
//
// The choice that `auto` makes: the first backend in an order of preference that every rank can use or, on one host
// with a tuning table, the fastest by that table. On several hosts, one of which has several ranks, a backend of one
// host is added for the ranks of each. All ranks make the same choice.
#pragma once

#include <string>
#include <vector>

#include "registry/registry.hpp"
#include "registry/tuning.hpp"
#include "store/store.hpp"

namespace backplane::core {

// A backend as one rank sees it.
struct Candidate {
  std::string id;
  std::string objection;      // why this rank cannot use it; empty: it can
  bool is_autonomous = true;  // progresses without calls
  std::string device = {};    // set: it serves device memory and would use this device, which two ranks must not share
  std::string remark = {};    // of its probe, about this machine
  bool can_compose = true;    // can be part of a composite
};

// Checks that the backend works on this machine for a group of `world_size` ranks (0: unknown), and returns its
// remarks, if any. Throws core::Error with the reason if it does not.
std::string probe_for(const Member& member, int32_t world_size);

// All backends that connect processes, in order of preference, each loaded and probed for a group of `world_size`
// ranks. `device`: ordinal of the device that this rank computes on, -1: none.
std::vector<Candidate> candidates(Registry& registry, int32_t world_size, int32_t device);

// Equal for processes that can share memory: the same kernel, process id namespace and user.
std::string memory_domain();
// The host of a rank of this process, in groups that depend on it: memory_domain() or, if BACKPLANE_IMAGINED_HOSTS is
// set, also the entry of the rank in it, so that one machine stands for several hosts. BP_INVALID if it has none.
std::string host_identity(int32_t global_rank);

struct Choice {
  std::string id;
  std::string reason;                           // one sentence
  std::vector<BackendOverride> overrides = {};  // operations that other backends serve, by the tuning table
  std::string for_devices = {};                 // the backend for device memory; empty: none that all can use
  std::string inside = {};  // not empty: this backend connects the ranks of each host, and `id` the hosts
};

// The backend for device memory in a world of one rank; empty: none.
std::string choose_for_devices(const std::vector<Candidate>& mine);

// All ranks call it with their candidates and a store prefix that nothing else uses. Blocks until all have called it.
// Throws BP_UNSUPPORTED, with the same text on all ranks, if there is no backend that all can use. `tuning` is the text
// of rank 0's tuning table (tuning.hpp), empty if there is none; it counts if all ranks are in one memory domain. Store
// calls per rank: one or two for each candidate and four more; twice as many for the last rank.
Choice agree_on_backend(Store& store, int32_t rank, int32_t world_size, const std::vector<Candidate>& mine,
                        const std::string& domain, const std::string& tuning, Deadline deadline);

}  // namespace backplane::core
