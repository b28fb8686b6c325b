// SPDX-License-Identifier: Apache-2.0
//
// Metrics and calls of a worker: for the C API, and for the flight recorder and the layers of the workers' group. Reads
// the other parts; has no state or lock of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "group/group.hpp"
#include "rpc/context.hpp"
#include "rpc/server.hpp"

namespace backplane::core::rpc {

class Report {
 public:
  // `global_ranks`: of the workers, in the job.
  Report(Context* context, Caller* caller, References* references, Server* server, std::vector<int32_t> global_ranks)
      : context_(*context),
        caller_(*caller),
        references_(*references),
        server_(*server),
        global_ranks_(std::move(global_ranks)) {}

  // Adds the worker's calls and metrics to a group's flight recorder.
  void attach_to(Group& group);
  std::string metrics_json() const;

  // Parts of error texts: the pending calls, or "", and the functions that run here.
  std::string pending_calls() const;
  // Whether calls of this worker to others are pending.
  bool has_pending_calls() const { return caller_.calls().counts().active > 0; }
  std::string running_functions() const;
  // One sentence for each value of this worker with references.
  std::vector<std::string> leaks() const;

 private:
  // `peer`: -1 for a metric of the whole worker.
  struct Metric {
    const char* name;
    uint32_t kind;  // BP_METRIC_...
    uint64_t value;
    int32_t peer = -1;
  };

  std::vector<Metric> metrics() const;
  std::string calls_json() const;

  Context& context_;
  Caller& caller_;
  References& references_;
  Server& server_;
  const std::vector<int32_t> global_ranks_;
};

}  // namespace backplane::core::rpc
