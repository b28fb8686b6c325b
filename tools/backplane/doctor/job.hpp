// SPDX-License-Identifier: Apache-2.0
//
// backplane doctor as the ranks of a job. Each rank reports to rank 0 through the job's store, and one rank per host
// measures the network.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "doctor/facts.hpp"
#include "doctor/network.hpp"

namespace backplane::tool {

struct DoctorJob {
  int rank = 0;
  int world_size = 1;
  bool is_first_on_host = true;  // whether this rank examines the host
  std::string store_host;
  uint16_t store_port = 0;
  std::string job_id;
};

// Reads the variables that `backplane run` sets. Returns a job of one rank without a store if there are none. Throws
// Failure(kWrongUse) in a job of another launcher, whose store may not exist yet.
DoctorJob job_from_environment();

struct Observations {
  std::vector<Facts> ranks;  // in order; those that have reported
  std::vector<int> silent;   // ranks that have not
  std::vector<Path> paths;
  std::vector<std::string> unfinished;  // hosts that have not reported their paths
};

// Blocks until all ranks have reported and the network is measured, at most `timeout` for each step. Returns the
// observations on rank 0. Throws Failure(kFailed) if the store cannot be reached, on other ranks also if rank 0 does
// not report in time.
Observations observe_job(const DoctorJob& job, std::chrono::nanoseconds timeout);

}  // namespace backplane::tool
