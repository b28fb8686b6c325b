// SPDX-License-Identifier: Apache-2.0
//
// How a group is set up: its ranks, its backends, and what it shares with the other groups of its job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backplane/abi/op.h"
#include "group/agent.hpp"
#include "group/liveness.hpp"
#include "group/reporter.hpp"
#include "registry/selection.hpp"

namespace backplane::core {

// Collectives of one kind in host memory whose part per rank has from `from` to `end - 1` bytes.
struct SizeRange {
  uint32_t kind = 0;
  uint64_t from = 0;
  uint64_t end = UINT64_MAX;
};

// A backend with its options, and the kind of memory that it serves (none: every kind that no other backend names).
struct ChosenBackend {
  std::optional<uint32_t> memory;
  const Member* member = nullptr;
  std::shared_ptr<const BackendOptions> options;
  // `auto`: the ranks choose a backend from this registry at the start, with the options that were given.
  Registry* choose_from = nullptr;
  KeyValues given;
  std::vector<SizeRange> only = {};  // not empty: it serves nothing else
};
using ChooseBackends = std::function<std::vector<ChosenBackend>()>;

// What the groups of one job share.
struct JobResources {
  std::shared_ptr<void> owner;         // kept alive by every group of the job: the server of its store
  std::shared_ptr<Reporter> reporter;  // NULL: the group makes one, unless it has a single rank
  std::shared_ptr<Liveness> liveness;  // NULL: the group makes one, unless it has a single rank
};

struct GroupConfig {
  std::string name;
  int32_t rank = -1;  // -1: not a member
  int32_t world_size = 0;
  int32_t device = -1;
  int64_t timeout_ns = 0;             // default of its operations
  std::vector<int32_t> global_ranks;  // world_size
  std::vector<ChosenBackend> backends;
  ChooseBackends choose;             // unless empty, replaces `backends` once all members have joined
  std::vector<ChosenPlugin> layers;  // around each backend, the outermost first
  std::shared_ptr<Store> store;      // this group's own keys
  std::string key = kFirstGroup;     // unique in the job, unlike the name
  JobResources job;
  int64_t start_timeout_ns = BP_INHERIT_TIMEOUT;  // BP_INHERIT_TIMEOUT: timeout_ns
  bool survives_parent = false;                   // made by shrink: an abort of its parent does not end its start
};

// The id of the backend that serves a kind of memory, "" if none.
inline std::string backend_id(const GroupConfig& config, uint32_t memory) {
  for (const ChosenBackend& backend : config.backends) {
    if (!backend.memory || *backend.memory == memory) return backend.member->id;
  }
  return {};
}

}  // namespace backplane::core
