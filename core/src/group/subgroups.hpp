// SPDX-License-Identifier: Apache-2.0
//
// The groups that are made from a group.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "group/config.hpp"
#include "text.hpp"

namespace backplane::core {

class Group;

class Subgroups {
 public:
  explicit Subgroups(Group& parent) : parent_(parent) {}
  Subgroups(const Subgroups&) = delete;
  Subgroups& operator=(const Subgroups&) = delete;

  // Called by all members of the parent in the same order. `name` may be empty. `choose`: other backends than the
  // parent's; a rank on which it throws tells the others.
  std::shared_ptr<Group> new_group(const std::vector<int32_t>& ranks, const std::string& name, int64_t timeout_ns,
                                   ChooseBackends choose = {});
  // The same, called by the members of the new group only.
  std::shared_ptr<Group> new_group_by_members(const std::vector<int32_t>& ranks, const std::string& name,
                                              int64_t timeout_ns);
  std::shared_ptr<Group> split(int64_t color, int64_t key);
  // A group of the members that live, called by all of them, also where the parent is broken. It does not end with the
  // parent. timeout_ns 0: the parent's.
  std::shared_ptr<Group> shrink(int64_t timeout_ns);

  // A group that is being made ends with its parent. Throws if the parent is not active; with `even_broken`, only if
  // it has been destroyed.
  void adopt(const std::shared_ptr<Group>& child, bool even_broken);
  // Those that still exist.
  std::vector<std::shared_ptr<Group>> all() const;
  // Aborts those that have not started. A group made by shrink is spared unless the parent has been destroyed: it is
  // made from a broken group, and a late abort of the parent does not concern it.
  void abort_starting(const Error& cause);
  void destroy_all();

 private:
  void release(const std::shared_ptr<Group>& child);
  void check_ranks(const std::vector<int32_t>& ranks) const;
  // A child's config, without name, key and store of its own.
  GroupConfig child_config(const std::vector<int32_t>& ranks) const;
  // split.cpp: gives `mine` to all ranks, as many numbers on each, and returns all ranks' in their order.
  std::vector<int64_t> gather_by_operation(const std::vector<int64_t>& mine);
  std::vector<int64_t> gather_by_store(const std::vector<int64_t>& mine);
  bool can_gather_in_host_memory() const;
  // shrink.cpp
  std::vector<int32_t> survivors(Store& round, Deadline deadline, const Allowance& allowance) const;
  std::shared_ptr<Group> start_shrunk(const std::vector<int32_t>& ranks, uint64_t number, Deadline deadline);

  Group& parent_;
  std::atomic<uint64_t> made_ = 0;
  std::atomic<uint64_t> splits_ = 0;  // through the store
  std::atomic<uint64_t> shrinks_ = 0;
  std::atomic<bool> shrinking_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::weak_ptr<Group>> children_;
  std::map<std::vector<int32_t>, uint64_t> made_by_members_;  // how many groups of these ranks
};

// The traces of a group and of the groups made from it, as a JSON array.
std::string trace_of_all(Group& group);

}  // namespace backplane::core
