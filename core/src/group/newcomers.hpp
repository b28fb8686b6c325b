// SPDX-License-Identifier: Apache-2.0
//
// Newcomers: processes that ask, through a store, to be taken into a group. The keys, all under "grow/":
//
//   ids, attempts   counters
//   waiting         the newcomers in the order of asking, "4:- 7:2": number 7 was taken by attempt 2, number 4 by none
//   ask/ID          the identity and the choices of newcomer ID
//   answer/ID       what the members answered
//   group/N/        the keys of the group of attempt N
//
// A newcomer enrolls in the scope "grow/asking/" as its number, so that the members learn of its death, and removes its
// keys itself. An attempt is the start of one group. If it fails, a newcomer asks again under a new number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "group/config.hpp"
#include "group/failure_detector.hpp"
#include "store/store.hpp"

namespace backplane::core {

class Group;

// The decision of a group's members.
struct Attempt {
  int64_t number = -1;             // -1: no newcomer is taken
  std::vector<int64_t> newcomers;  // their numbers, in the order of asking
  std::string text;                // the name of the group, or why no newcomer is taken
};
std::string encode(const Attempt& attempt);
Attempt decode_attempt(const std::string& text);

// The store as a meeting point of members and newcomers.
class Newcomers {
 public:
  struct Entry {
    int64_t id = 0;
    int64_t attempt = -1;  // -1: taken by none
  };

  explicit Newcomers(const std::shared_ptr<Store>& store);

  // The number of newcomers that no attempt has taken.
  int64_t count(Deadline deadline);
  // For one member: takes all newcomers that have asked, are alive and made the choices of `config`, that of the old
  // group. Refuses those with other choices.
  Attempt take(const GroupConfig& config, Deadline deadline);

  // For a newcomer.
  int64_t new_id(Deadline deadline) { return keys_->add("ids", 1, deadline); }
  void ask(int64_t id, const std::string& choices, Deadline deadline);
  // Waits for the answer. Throws BP_INVALID if the members refuse. Sets *rank and *world_size of the new group.
  Attempt answer(int64_t id, int32_t* rank, int32_t* world_size, Deadline deadline);
  // Removes the keys of a newcomer. Returns its entry, if it still had one.
  std::optional<Entry> forget(int64_t id, Deadline deadline);

  // Enrolls this process, as a newcomer or, with -1, to be notified of the loss of newcomers.
  std::shared_ptr<FailureDetector> enroll(int64_t id, Deadline deadline);
  std::shared_ptr<Store> group_keys(int64_t attempt) const;
  std::string describe() const { return keys_->describe(); }

 private:
  std::vector<Entry> entries(Deadline deadline);
  // Changes the list atomically. `change` may be called several times.
  void update(const std::function<void(std::vector<Entry>&)>& change, Deadline deadline);
  // Returns the newcomers that can be taken. Appends why others cannot to *reasons.
  std::vector<int64_t> admit(std::vector<Entry>& entries, const Absences& absences, const std::string& choices,
                             std::vector<std::string>* reasons, Deadline deadline);

  const std::shared_ptr<Store> keys_;
};

// Makes the start of an attempt fail on all ranks that wait for others to join it. Returns the first reason that a rank
// gave, or "", without effect, if all had joined. Blocks for at most 2 s. Returns `why` if the store fails.
std::string call_off(Store& group_keys, const std::string& why);

// Calls an attempt off when one of its newcomers is lost. Lives during the start of its group.
class AttemptWatch final : private FailureDetector::Listener {
 public:
  AttemptWatch(std::shared_ptr<FailureDetector> detector, const Attempt& attempt, std::shared_ptr<Store> group_keys);
  ~AttemptWatch() override { detector_->remove(this); }
  AttemptWatch(const AttemptWatch&) = delete;
  AttemptWatch& operator=(const AttemptWatch&) = delete;
  // The sentence about the first lost newcomer, "" if none is lost.
  std::string loss() const;

 private:
  void on_loss(const Loss& loss) override;

  const std::shared_ptr<FailureDetector> detector_;
  const std::vector<int64_t> newcomers_;
  const std::shared_ptr<Store> group_keys_;
  mutable std::mutex mutex_;
  std::string loss_;  // guarded by mutex_
};

// Joins a group as a newcomer. `config`: without ranks, name and keys. Blocks until members have taken this process.
std::shared_ptr<Group> join_as_newcomer(const GroupConfig& config, const std::shared_ptr<Store>& store,
                                        Deadline deadline);

}  // namespace backplane::core
