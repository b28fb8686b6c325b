// SPDX-License-Identifier: Apache-2.0
//
// The numbers of the worker that has met others in the group (ext/calls.h), as they are at one moment.
#pragma once

#include <string>
#include <vector>

#include "backplane/abi/ext/calls.h"
#include "backplane/sdk/sdk.hpp"

namespace backplane::trace {

struct WorkerMetric {
  std::string name;
  std::string peer;  // empty: the worker's own
  bool is_counter = false;
  uint64_t value = 0;
};

struct WorkerMetrics {
  std::string worker;
  std::vector<WorkerMetric> all;
};

// None if `source` is NULL.
inline WorkerMetrics read(const bp_metrics_api* source) {
  WorkerMetrics metrics;
  if (source == nullptr) return metrics;
  metrics.worker = source->worker;
  const auto add = [](void* to, const bp_metric* metric) {
    bp_error err;
    bp_error_init(&err);
    sdk::guarded(&err, [=] {
      static_cast<WorkerMetrics*>(to)->all.push_back({metric->name, metric->peer == nullptr ? "" : metric->peer,
                                                      metric->kind == BP_METRIC_COUNTER, metric->value});
      return BP_OK;
    });
  };
  source->visit(source->ctx, add, &metrics);
  return metrics;
}

}  // namespace backplane::trace
