// SPDX-License-Identifier: Apache-2.0
//
// Reports the calls and metrics of an RPC worker to the layer of its group that observes calls (abi/ext/calls.h).
#pragma once

#include <functional>
#include <string>

#include "backplane/abi/ext/calls.h"
#include "group/agents.hpp"
#include "group/state.hpp"

namespace backplane::core {

class CallObserver {
 public:
  using Metrics = std::function<void(const std::function<void(const bp_metric& metric)>& each)>;

  CallObserver(GroupState& state, const Agents& agents) : state_(state), agents_(agents) {}
  CallObserver(const CallObserver&) = delete;
  CallObserver& operator=(const CallObserver&) = delete;

  // Reports a call that has ended. Any thread.
  void ended(const bp_call& call);
  // Registers the worker's metrics source. Any thread may call it until the group is destroyed. Call once, before
  // `ended`.
  void set_metrics(const std::string& worker, Metrics metrics);

 private:
  const bp_calls_api* layer() const { return state_.destroyed() ? nullptr : agents_.call_layer(); }

  GroupState& state_;
  const Agents& agents_;
  std::string worker_;
  Metrics metrics_;
  bp_metrics_api table_ = {};
};

}  // namespace backplane::core
