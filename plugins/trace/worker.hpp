// SPDX-License-Identifier: Apache-2.0
//
// A snapshot of the metrics of the worker that uses this group (ext/calls.h).
#pragma once

#include <string>
#include <vector>

#include "backplane/abi/ext/calls.h"
#include "backplane/sdk/sdk.hpp"

namespace backplane::trace {

struct WorkerMetric {
  std::string name;
  std::string peer;  // empty for metrics of the worker itself
  bool is_counter = false;
  uint64_t value = 0;
};

struct WorkerMetrics {
  std::string worker;
  std::vector<WorkerMetric> all;
};

// Returns no metrics if `source` is NULL.
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
