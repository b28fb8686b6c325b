// SPDX-License-Identifier: Apache-2.0
//
// The creation of groups from a group, and the groups that were made from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "error.hpp"
#include "group/agreement.hpp"
#include "group/config.hpp"
#include "group/newcomers.hpp"
#include "text.hpp"

namespace backplane::core {

class Group;

class Subgroups {
 public:
  explicit Subgroups(Group& parent) : parent_(parent) {}
  Subgroups(const Subgroups&) = delete;
  Subgroups& operator=(const Subgroups&) = delete;

  // All members of the parent call it, in the same order. `name` may be empty. `choose`, unless empty, chooses the
  // backends instead of the parent's; if it throws on a rank, the start fails on all.
  std::shared_ptr<Group> new_group(const std::vector<int32_t>& ranks, const std::string& name, int64_t timeout_ns,
                                   ChooseBackends choose = {});
  // Only the members of the new group call it.
  std::shared_ptr<Group> new_group_by_members(const std::vector<int32_t>& ranks, const std::string& name,
                                              int64_t timeout_ns);
  std::shared_ptr<Group> split(int64_t color, int64_t key);
  // A group of the surviving members. All of them call it, even if the parent is broken. It does not end with the
  // parent.
  std::shared_ptr<Group> shrink(int64_t timeout_ns);
  // A group of all members and of the newcomers that wait at the store. All members call it. It does not end with the
  // parent. Throws BP_AGAIN if no newcomer could be taken.
  std::shared_ptr<Group> grow(const std::shared_ptr<Store>& store, int64_t timeout_ns);

  // Registers a group that is being made, so that it ends with its parent. Throws if the parent is not active or, with
  // `even_broken`, if it has been destroyed.
  void adopt(const std::shared_ptr<Group>& child, bool even_broken);
  // The groups that still exist.
  std::vector<std::shared_ptr<Group>> all() const;
  // Aborts the groups that have not started. Spares a group made by shrink, whose parent is broken anyway, unless the
  // parent has been destroyed.
  void abort_starting(const Error& cause);
  void destroy_all();

 private:
  // Compares this rank's request for group `number` with those of the other ranks. Throws BP_INVALID on all of them if
  // they contradict each other.
  void agree(uint64_t number, const GroupRequest& request, Deadline deadline);
  std::shared_ptr<Group> make(uint64_t number, const GroupRequest& request, int64_t timeout_ns, ChooseBackends choose);
  // The key of a group among those made from this one. Groups made by one call differ in their lowest member.
  static std::string key_of(uint64_t number, const std::vector<int32_t>& ranks);
  // The keys of a group with this key.
  std::shared_ptr<Store> keys_of(const std::string& key) const;
  std::string default_name(uint64_t number) const;
  void release(const std::shared_ptr<Group>& child);
  // Why no group can be made of these ranks; "" if one can.
  std::string problem_of(const std::vector<int32_t>& ranks) const;
  // A child's config, without its name. `key`: what distinguishes it among the groups made from this one.
  GroupConfig child_config(const std::vector<int32_t>& ranks, const std::string& key) const;
  // split.cpp: return the numbers of all ranks in rank order. `mine`: this rank's, the same count on each rank.
  std::vector<int64_t> gather_by_operation(const std::vector<int64_t>& mine);
  std::vector<int64_t> gather_by_store(const std::vector<int64_t>& mine);
  bool can_gather_in_host_memory() const;
  // shrink.cpp
  std::vector<int32_t> survivors(Store& round, Deadline deadline, const Allowance& allowance) const;
  std::shared_ptr<Group> start_shrunk(const std::vector<int32_t>& ranks, uint64_t number, Deadline deadline);
  // Lets a group that was made from this one outlive it.
  std::shared_ptr<Group> detach(const std::shared_ptr<Group>& group);
  // grow.cpp
  Attempt agree_on_attempt(Newcomers& newcomers, Deadline deadline);
  std::shared_ptr<Group> start_grown(Newcomers& newcomers, const Attempt& attempt, Deadline deadline);

  Group& parent_;
  std::atomic<uint64_t> made_ = 0;
  std::atomic<uint64_t> splits_ = 0;  // through the store
  std::atomic<uint64_t> shrinks_ = 0;
  std::atomic<bool> shrinking_ = false;
  std::atomic<uint64_t> grows_ = 0;
  std::atomic<bool> growing_ = false;
  mutable std::mutex mutex_;  // guards the fields below
  std::vector<std::weak_ptr<Group>> children_;
  std::map<std::vector<int32_t>, uint64_t> made_by_members_;  // number of groups by ranks
};

// The error of a group of the ranks `from` of the job, as one of a group of the ranks `to`: its peer rank is that
// group's number of the same process, -1 if it is not a member.
Error renumbered(const Error& error, const std::vector<int32_t>& from, const std::vector<int32_t>& to);

// The traces of a group and of the groups made from it, as a JSON array.
std::string trace_of_all(Group& group);

}  // namespace backplane::core
