// SPDX-License-Identifier: Apache-2.0
#include "measure/results.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <sstream>
#include <stdexcept>

namespace backplane::bench {
namespace {

Result read_line(const std::string& line) {
  std::istringstream words(line);
  std::string kind;
  std::string test;
  Result result;
  words >> kind >> result.target >> test >> result.row.bytes;
  if (!words) throw std::invalid_argument(line);
  result.row.test = test_of(test);
  if (kind == "wrong") {
    std::getline(words >> std::ws, result.wrong);
    return result;
  }
  size_t width = 0;
  words >> result.operations >> width;
  if (!words || kind != "samples" || width == 0 || width > 3) throw std::invalid_argument(line);
  std::vector<double>* const columns[] = {&result.us, &result.alone, &result.compute};
  size_t next = 0;
  for (double us = 0; words >> us; next = (next + 1) % width) columns[next]->push_back(us);
  if (result.us.empty() || next != 0) throw std::invalid_argument(line);
  return result;
}

}  // namespace

Results::Results(const std::string& path) : path_(path) {}

void Results::samples(size_t target, const Row& row, uint64_t operations, const std::vector<float>& us) {
  std::ostringstream line;
  const int width = row.test == Test::kOverlap ? 3 : 1;
  line << "samples " << target << ' ' << name_of(row.test) << ' ' << row.bytes << ' ' << operations << ' ' << width;
  for (const float each : us) line << ' ' << each;
  write(line.str());
}

void Results::wrong(size_t target, const Row& row, const std::string& text) {
  if (text.empty()) return;
  std::ostringstream line;
  line << "wrong " << target << ' ' << name_of(row.test) << ' ' << row.bytes << ' ' << text;
  write(line.str());
}

void Results::write(const std::string& line) {
  const std::string whole = line + "\n";
  const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const bool done = file >= 0 && ::write(file, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size());
  if (file >= 0) ::close(file);
  if (!done) throw std::runtime_error("cannot write results to " + path_);
}

std::vector<Result> read_results(const std::string& text) {
  std::vector<Result> results;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) results.push_back(read_line(line));
  return results;
}

}  // namespace backplane::bench
