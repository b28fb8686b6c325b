// SPDX-License-Identifier: Apache-2.0
//
// A process group over one of torch. Its state is shared by its threads, which may outlive the group: a call of torch
// that does not return keeps its thread.
#pragma once

#include <memory>
#include <string_view>

#include "backplane/sdk/first_failure.hpp"
#include "backplane/sdk/sdk.hpp"
#include "collectives.hpp"
#include "messages.hpp"
#include "torch_group.hpp"

namespace backplane::c10d {

class Group final : public sdk::ProcessGroup {
 public:
  static std::unique_ptr<sdk::ProcessGroup> start(const sdk::Context& context);
  explicit Group(const std::shared_ptr<TorchGroup>& torch);
  ~Group() override;

  std::unique_ptr<sdk::Work> submit(const bp_op& op) override;
  void abort(const sdk::Failure& why) noexcept override;
  const void* extension(std::string_view id) override;

 private:
  const std::shared_ptr<TorchGroup> torch_;
  const std::shared_ptr<Collectives> collectives_;
  const std::shared_ptr<Messages> messages_;
  sdk::FirstFailure failure_;
};

}  // namespace backplane::c10d
