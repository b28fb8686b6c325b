// SPDX-License-Identifier: Apache-2.0
#include "measure/task.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

namespace backplane::bench {
namespace {

constexpr std::array<const char*, kTests> kNames = {"barrier",    "broadcast", "reduce",     "all_reduce",
                                                    "gather",     "scatter",   "all_gather", "reduce_scatter",
                                                    "all_to_all", "send_recv", "bandwidth",  "overlap"};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

Row row_of(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) throw std::invalid_argument("a row is TEST:BYTES");
  return {test_of(text.substr(0, colon)), std::strtoull(text.c_str() + colon + 1, nullptr, 10)};
}

}  // namespace

const char* name_of(Test test) { return kNames.at(static_cast<size_t>(test)); }

Test test_of(const std::string& name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<Test>(found - kNames.begin());
  std::string known;
  for (const char* each : kNames) known.append(known.empty() ? "" : ", ").append(each);
  throw std::invalid_argument("unknown operation '" + name + "'; the operations are " + known);
}

uint64_t window_of(uint64_t bytes) {
  constexpr uint64_t kWindow = 64;
  constexpr uint64_t kLimit = uint64_t{256} << 20;
  return std::clamp<uint64_t>(kLimit / std::max<uint64_t>(bytes, 1), 1, kWindow);
}

std::vector<std::string> to_arguments(const Task& task) {
  std::string flags;
  flags.append(task.check ? "check," : "").append(task.pin ? "pin," : "").append(task.progress ? "progress," : "");
  flags.append(task.registered ? "registered," : "");
  if (task.devices > 0) flags.append("devices=").append(std::to_string(task.devices)).append(",");
  std::ostringstream rows;
  for (const Row& row : task.rows) rows << name_of(row.test) << ':' << row.bytes << ',';
  std::ostringstream seconds;
  seconds << task.seconds;
  return {task.results, seconds.str(), flags.empty() ? "-" : flags, rows.str()};
}

Task to_task(const std::vector<std::string>& arguments) {
  if (arguments.size() < kTaskArguments) throw std::invalid_argument("the arguments are FILE SECONDS FLAGS ROWS");
  Task task;
  task.results = arguments[0];
  task.seconds = std::strtod(arguments[1].c_str(), nullptr);
  for (const std::string& flag : split(arguments[2], ',')) {
    task.check = task.check || flag == "check";
    task.pin = task.pin || flag == "pin";
    task.progress = task.progress || flag == "progress";
    task.registered = task.registered || flag == "registered";
    if (flag.starts_with("devices=")) task.devices = std::atoi(flag.c_str() + 8);
  }
  for (const std::string& row : split(arguments[3], ',')) task.rows.push_back(row_of(row));
  return task;
}

double data_of(Row row, int ranks) {
  switch (row.test) {
    case Test::kGather:
    case Test::kScatter:
    case Test::kAllGather:
    case Test::kReduceScatter:
    case Test::kAllToAll:
      return static_cast<double>(row.bytes) * ranks;
    default:
      return static_cast<double>(row.bytes);
  }
}

double bus_factor(Test test, int ranks) {
  const double n = ranks;
  switch (test) {
    case Test::kAllReduce:
    case Test::kOverlap:
      return 2 * (n - 1) / n;
    case Test::kGather:
    case Test::kScatter:
    case Test::kAllGather:
    case Test::kReduceScatter:
    case Test::kAllToAll:
      return (n - 1) / n;
    default:
      return 1;
  }
}

}  // namespace backplane::bench
