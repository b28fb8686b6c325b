// SPDX-License-Identifier: Apache-2.0
//
// The process group. Collectives run on the caller's thread (BP_OP_SYNC) or on workers; messages are moved by gloo's
// thread.
#pragma once

#include <memory>

#include "backplane/sdk/sdk.hpp"
#include "backplane/sdk/worker.hpp"
#include "collectives.hpp"
#include "messages.hpp"

namespace backplane::gloo {

class Group final : public sdk::ProcessGroup {
 public:
  // Blocks until all ranks listen. Connections are opened when they are first used.
  static std::unique_ptr<Group> start(const sdk::Context& context);

  ~Group() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;

 private:
  struct Joined;  // the result of start()

  Group(const sdk::Context& context, const Joined& joined);

  std::unique_ptr<sdk::Work> submit_message(const bp_op& op);
  std::unique_ptr<sdk::Work> submit_collective(const bp_op& op);
  void run(const bp_op& op, Clock::time_point deadline);

  const std::shared_ptr<Health> health_;
  const std::shared_ptr<Context> transport_;  // null in a group of one
  MessageContext shared_;
  Collectives collectives_;
  sdk::Workers workers_;  // last: its threads use all of the above
};

}  // namespace backplane::gloo
