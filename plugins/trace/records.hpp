// SPDX-License-Identifier: Apache-2.0
//
// What the layer has recorded of its group. Any thread adds, any thread reads.
#pragma once

#include <atomic>
#include <optional>

#include "backplane/abi/ext/calls.h"
#include "backplane/sdk/sdk.hpp"
#include "events.hpp"
#include "functions.hpp"
#include "statistics.hpp"

namespace backplane::trace {

struct Records {
  explicit Records(const sdk::Context& context) {
    if (context.options.text("chrome").empty()) return;
    events.emplace(static_cast<size_t>(context.options.integer("events")));
  }

  Statistics statistics;
  Functions functions;
  std::optional<Events> events;                         // with the option `chrome`
  std::atomic<const bp_metrics_api*> worker = nullptr;  // metrics of the group's RPC worker, if it has one
};

}  // namespace backplane::trace
