// SPDX-License-Identifier: Apache-2.0
//
// One part of a composite: the agent of a backend among some ranks of the group, which it numbers on its own.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backplane/abi/ext/notify.h"
#include "backplane/abi/ext/probe.h"
#include "group/plugin_instance.hpp"

namespace backplane::core {

class CompositePart {
 public:
  // Starts the agent. `ranks`: the members, by their rank in the part. `config`: that of the whole group. `keys`:
  // prefix of the part's keys. `composite_tag_bits`: bp_backend.tag_bits of the composite. `parent`: the part of all
  // ranks of the parent group, NULL if there is none. Throws core::Error.
  CompositePart(const Member& member, std::shared_ptr<const BackendOptions> options, std::vector<int32_t> ranks,
                const AgentConfig& config, const std::string& keys, uint32_t composite_tag_bits,
                const CompositePart* parent);
  CompositePart(const CompositePart&) = delete;
  CompositePart& operator=(const CompositePart&) = delete;

  PluginInstance& instance() { return *instance_; }
  const PluginInstance& instance() const { return *instance_; }
  const bp_process_group_api& api() const { return *api_; }
  void* self() const { return self_; }
  bool contains(int32_t rank) const { return rank_in_part(rank) >= 0; }
  // Whether its ranks and tags are those of the group.
  bool is_like_group() const { return ranks_.size() == rank_of_.size() && own_bits_ == composite_bits_; }
  // NULL if the backend lacks them.
  const bp_probe_api* probe() const { return probe_; }
  const bp_notify_api* notify() const { return notify_; }
  const void* extension(const char* id) const { return api_->extension(self_, id); }

  // Between the numbers of the group and those of the part: peers, tags, results and errors.
  int32_t rank_in_part(int32_t rank) const;  // -1 for other ranks; BP_ANY_SOURCE stays
  uint64_t tag_in_part(uint64_t tag) const;
  bp_op op_in_part(const bp_op& op, bp_result* result) const;
  void result_in_group(bp_result* result) const;
  // Writes `from`, which the part reported with this status, to `to` (may be NULL). Returns the status.
  int32_t error_in_group(int32_t status, const bp_error& from, bp_error* to) const;
  Error error_in_group(const Error& error) const;

  // Aborts the agent. The cause names ranks of the group.
  void abort(const bp_error& why);

 private:
  struct Cause {
    int32_t status;
    int32_t peer;
  };
  std::string text_in_group(const std::string& text) const;

  std::vector<int32_t> ranks_;
  std::vector<int32_t> rank_of_;   // in the part, by rank in the group; -1: no member
  const uint32_t composite_bits_;  // of a tag
  const uint32_t own_bits_;
  std::unique_ptr<PluginInstance> instance_;
  const bp_process_group_api* api_ = nullptr;
  void* self_ = nullptr;
  const bp_probe_api* probe_ = nullptr;
  const bp_notify_api* notify_ = nullptr;
  mutable std::mutex cause_mutex_;
  std::optional<Cause> cause_;  // of the abort
};

}  // namespace backplane::core
