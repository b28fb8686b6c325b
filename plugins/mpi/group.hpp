// SPDX-License-Identifier: Apache-2.0
//
// The process group: communicators of MPI over the group's members.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backplane/sdk/notify.hpp"
#include "messages.hpp"
#include "operation.hpp"

namespace backplane::mpi {

class Group final : public sdk::ProcessGroup {
 public:
  // Initialises MPI if necessary, and blocks until all members have come.
  static std::unique_ptr<Group> start(const sdk::Context& context);

  ~Group() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;
  std::span<const bp_capability* const> capabilities() const noexcept override;
  const void* extension(std::string_view id) override;

 private:
  struct Members;  // the result of the ranks' exchange

  Group(World& world, const sdk::Context& context, const Members& members);

  void revoke() noexcept;

  const World::Use use_;
  const bool native_;                   // collectives by MPI
  const std::vector<pid_t> processes_;  // of the members on this host; 0 for those of others
  GroupState state_;
  Probes probes_{state_};
  const Progress::Use progress_;
};

}  // namespace backplane::mpi
