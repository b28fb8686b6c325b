// SPDX-License-Identifier: Apache-2.0
//
// What `backplane bench` has found, for people and programs.
#pragma once

#include <string>
#include <vector>

#include "measure/results.hpp"
#include "measure/task.hpp"

namespace backplane::tool {

// One subject in one row with one number of ranks. Times in microseconds.
struct Measured {
  std::string subject;  // "gloo", "zmq?io_threads=2", "peer openmpi"
  int ranks = 0;
  bench::Row row;
  bench::Finding found;            // all rounds together; samples sorted
  std::vector<std::string> wrong;  // sentences
};

struct LeftOut {
  std::string subject;
  std::string reason;
};

struct BenchReport {
  std::vector<Measured> results;  // by ranks, operation, size, and then in the order of the command line
  std::vector<LeftOut> left_out;
  bool pinned = false;
  bool checked = false;
  double seconds = 0;
  int rounds = 1;
};

// Of sorted samples, by nearest rank; `share` from 0 to 1.
double percentile(const std::vector<double>& sorted, double share);

struct Figures {
  double p1_us, p50_us, p99_us;
  double algbw, busbw;    // GB/s (10^9), from the median; 0 where nothing is moved
  double hidden_percent;  // of overlap: how much of the operation's time the computing hid, median; else -1
};
Figures figures(const Measured& measured);

std::string size_text(uint64_t bytes);  // "64 KiB"

std::string bench_table(const BenchReport& report);
std::string bench_json(const BenchReport& report);
std::string bench_csv(const BenchReport& report);
// A self-contained SVG: for each number of ranks and operation, medians over sizes, both axes logarithmic.
std::string bench_svg(const BenchReport& report);

// The tuning table by which `auto` chooses: medians of the backends alone, without peers and settings.
std::string bench_tuning(const BenchReport& report);

}  // namespace backplane::tool
