// SPDX-License-Identifier: Apache-2.0
//
// Turns the error of a backend into the error that all ranks of the group report: a lost member, or a diagnosis on
// which the ranks agree.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "error.hpp"
#include "group/diagnosis.hpp"
#include "group/state.hpp"

namespace backplane::core {

class Failures {
 public:
  // All must outlive this object.
  Failures(const GroupConfig& config, const JobResources& job, GroupState& state) noexcept
      : config_(config), job_(job), state_(state) {}
  Failures(const Failures&) = delete;
  Failures& operator=(const Failures&) = delete;

  // The error with this rank, the group and the operation in its text.
  Error with_context(const Error& error, const Operation& operation) const;
  // The loss or the failure of the group that caused a backend's error, or the error itself if none is known. May wait
  // for half a second.
  Error explained(const Error& error) const { return cause_behind(error).value_or(error); }
  // The error that a failed operation reports. Breaks the group on all ranks, with one cause, if a collective failed
  // that may have begun on a rank.
  Error handle(const Error& error, const Operation& operation, bool begun);
  // The error of a collective that timed out or that this rank's backend refused (usually because another rank is in a
  // different one), with the diagnosis from the positions of the other ranks. All ranks get the same sentence.
  Error diagnosed(const Error& error, const Operation& operation);
  // Breaks the group because a backend reported a failure outside any operation.
  void report(const Error& error);
  // Breaks the group because the program aborts it. Tells the other ranks first, because their connections break once
  // the agents are aborted. Waits for the store for at most a quarter of a second.
  void abort(const Error& cause);
  // Breaks the group because its ranks are in different collectives.
  void report_mismatch(const std::string& text);
  // Breaks the group because another rank reported that it is broken.
  void accept(const Query& query);

 private:
  std::optional<Error> cause_behind(const Error& error) const;
  bool is_known_loss(const Error& error) const;
  Diagnosis investigate(const Error& error, const Operation& operation);
  // Breaks the group. Returns the cause on which all ranks agree.
  Error break_group(const Error& cause);
  // Makes `mine` the cause that all ranks report, and tells them, unless another rank was first: then returns the other
  // rank's cause.
  std::optional<Error> agree_on(const Error& mine, Deadline deadline);

  const GroupConfig& config_;
  const JobResources& job_;
  GroupState& state_;
  std::mutex mutex_;  // guards agreed_
  std::optional<Error> agreed_;
};

}  // namespace backplane::core
