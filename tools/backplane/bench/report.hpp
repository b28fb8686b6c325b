// SPDX-License-Identifier: Apache-2.0
//
// The report of `backplane bench` as a table, CSV, JSON and SVG. share/bench/README.md specifies the JSON.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "measure/results.hpp"
#include "measure/task.hpp"

namespace backplane::tool {

// One row: an operation of one backend with one size and number of ranks. Times in microseconds.
struct Measurement {
  std::string backend;  // "gloo", "zmq?io_threads=2", "peer openmpi"
  int ranks = 0;
  std::string operation;
  uint64_t bytes = 0;
  uint64_t samples = 0;
  uint64_t operations_per_sample = 0;
  double p1_us = 0;
  double p50_us = 0;
  double p99_us = 0;
  double algbw = 0;            // GB/s (10^9), from the median; 0 where nothing is moved
  double busbw = 0;            // the same
  double hidden_percent = -1;  // overlap: share of the operation's time that the computation hid, median; else -1
  std::vector<std::string> wrong;
};

// `result` holds the samples of all rounds, in any order.
Measurement summarize(const std::string& backend, int ranks, bench::Result result, std::vector<std::string> wrong);

// A percentile of sorted samples by nearest rank; `share` is between 0 and 1.
double percentile(const std::vector<double>& sorted, double share);

struct Skipped {
  std::string backend;
  std::string reason;
};

// The environment of the measurements, apart from the settings of the command line.
struct Environment {
  std::string date;  // UTC, ISO 8601
  std::string command;
  std::string host;
  std::string system;  // kernel and architecture
  std::string cpu;     // model
  int cores = 0;       // that this process may use
  double memory_gib = 0;
  std::vector<std::pair<std::string, std::string>> libraries;  // name and version
};

struct BenchReport {
  std::vector<Measurement> rows;  // by ranks, operation, size, and then in the order of the command line
  std::vector<Skipped> skipped;
  Environment environment;
  std::string title;  // of the chart; may be empty
  bool pinned = false;
  bool checked = false;
  double seconds = 0;
  int rounds = 1;
};

// Describes this process and machine. `backends` as --backend takes them; includes the versions of their plugins.
Environment read_environment(const std::vector<std::string>& backends);

std::string size_text(uint64_t bytes);  // "64 KiB"

std::string bench_table(const BenchReport& report);
std::string bench_csv(const BenchReport& report);
std::string bench_json(const BenchReport& report);
// A self-contained SVG with one panel per operation and number of ranks: medians over sizes, both axes logarithmic.
std::string bench_svg(const BenchReport& report);

// Reads files that bench_json wrote and joins their rows. Throws Failure(kWrongUse) naming the file.
BenchReport read_reports(const std::vector<std::string>& paths);

}  // namespace backplane::tool
