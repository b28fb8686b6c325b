// SPDX-License-Identifier: Apache-2.0
//
// The configuration of a group: its ranks, its backends, and the resources that it shares with the groups of its job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backplane/abi/op.h"
#include "group/agent.hpp"
#include "group/failure_detector.hpp"
#include "group/group_keys.hpp"
#include "group/reporter.hpp"
#include "registry/selection.hpp"

namespace backplane::core {

// Collectives of one kind in host memory with `from` to `end - 1` bytes per rank.
struct SizeRange {
  uint32_t kind = 0;
  uint64_t from = 0;
  uint64_t end = UINT64_MAX;
};

// A backend with its options, and the kind of memory that it serves (none: every kind that no other backend serves).
struct ChosenBackend {
  std::optional<uint32_t> memory;
  const Member* member = nullptr;
  std::shared_ptr<const BackendOptions> options;
  // Set for `auto`: at the start the ranks choose a backend from this registry and give it the options `given`.
  Registry* choose_from = nullptr;
  KeyValues given;
  std::vector<SizeRange> only = {};  // not empty: the backend serves only these
};
using ChooseBackends = std::function<std::vector<ChosenBackend>()>;

// Resources that the groups of one job share.
struct JobResources {
  std::shared_ptr<void> owner;                // the server of the job's store, kept alive by each group
  std::shared_ptr<GroupKeys> keys;            // of the first group; the keys of all others are among them
  std::shared_ptr<Reporter> reporter;         // NULL: the group makes one, unless it has a single rank
  std::shared_ptr<FailureDetector> detector;  // NULL: the group makes one, unless it has a single rank
};

struct GroupConfig {
  std::string name;
  int32_t rank = -1;  // -1: not a member
  int32_t world_size = 0;
  int32_t device = -1;
  int64_t timeout_ns = 0;             // default of operations
  std::vector<int32_t> global_ranks;  // world_size
  std::vector<ChosenBackend> backends;
  std::vector<ChosenBackend> requested;  // `backends` before `auto` chose
  ChooseBackends choose;                 // unless empty, sets `backends` once all members have joined
  std::vector<ChosenPlugin> layers;      // around each backend, the outermost first
  std::shared_ptr<Store> store;          // this group's own keys
  std::string key = kFirstGroup;         // unique in the job, unlike the name
  JobResources job;
  int64_t start_timeout_ns = BP_INHERIT_TIMEOUT;  // BP_INHERIT_TIMEOUT: timeout_ns
  bool survives_parent = false;                   // made by shrink: an abort of the parent does not end its start
  bool has_newcomers = false;                     // made by grow: member R of the parent has rank R
  std::string base_name = {};                     // without the suffixes of shrink and grow; empty: name
};

inline const std::string& base_name(const GroupConfig& config) {
  return config.base_name.empty() ? config.name : config.base_name;
}
// The part of the configuration, beside the ranks, that must be the same on all members. Backends as requested.
std::string requested_choices(const GroupConfig& config);

// The id of the backend that serves a kind of memory, "" if none.
inline std::string backend_id(const GroupConfig& config, uint32_t memory) {
  for (const ChosenBackend& backend : config.backends) {
    if (!backend.memory || *backend.memory == memory) return backend.member->id;
  }
  return {};
}

}  // namespace backplane::core
