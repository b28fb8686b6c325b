// SPDX-License-Identifier: Apache-2.0
//
// Turns what a backend reports into what all ranks of the group report: a lost member, or a diagnosis that the ranks
// agree on.
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

  // Adds this rank, the group and the operation to an error.
  Error labelled(const Error& error, const Operation& operation) const;
  // Returns the loss that is behind a backend's error, or the error if none is known. May wait for half a second.
  Error explained(const Error& error) const;
  // Returns what a failed operation reports. Breaks the group if a collective failed that may have begun on some rank.
  Error handle(const Error& error, const Operation& operation, bool begun);
  // A collective timed out, or this rank's backend refused it (most likely because another rank is in a different one):
  // asks the other ranks for their positions, and adds the diagnosis. All ranks get the same sentence.
  Error diagnosed(const Error& error, const Operation& operation);
  // Breaks the group because of a failure that a backend reported outside any operation.
  void report(const Error& error) { state_.abort(explained(error)); }
  // Breaks the group because its ranks are in different collectives.
  void report_mismatch(const std::string& text);
  // Another rank says that the group is broken.
  void accept(const Query& query);

 private:
  std::optional<Error> cause_behind(const Error& error) const;
  Diagnosis investigate(const Error& error, const Operation& operation);
  // All ranks agree on the first diagnosis that reaches the store. Tells those that have not heard of it.
  Diagnosis agree_on(const Diagnosis& mine, int32_t status);

  const GroupConfig& config_;
  const JobResources& job_;
  GroupState& state_;
  std::mutex mutex_;  // guards agreed_
  std::optional<Diagnosis> agreed_;
};

}  // namespace backplane::core
