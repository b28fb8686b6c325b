// SPDX-License-Identifier: Apache-2.0
#include "measure/results.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <sstream>
#include <stdexcept>

namespace backplane::bench {
namespace {

Finding read_line(const std::string& line) {
  std::istringstream words(line);
  std::string kind;
  std::string test;
  Finding finding;
  words >> kind >> finding.subject >> test >> finding.row.bytes;
  if (!words) throw std::invalid_argument(line);
  finding.row.test = test_of(test);
  if (kind == "wrong") {
    std::getline(words >> std::ws, finding.wrong);
    return finding;
  }
  size_t width = 0;
  words >> finding.operations >> width;
  if (!words || kind != "samples" || width == 0 || width > 3) throw std::invalid_argument(line);
  std::vector<double>* const columns[] = {&finding.us, &finding.alone, &finding.compute};
  size_t next = 0;
  for (double us = 0; words >> us; next = (next + 1) % width) columns[next]->push_back(us);
  if (finding.us.empty() || next != 0) throw std::invalid_argument(line);
  return finding;
}

}  // namespace

Results::Results(const std::string& path) : path_(path) {}

void Results::samples(size_t subject, const Row& row, uint64_t operations, const std::vector<float>& us) {
  std::ostringstream line;
  const int width = row.test == Test::kOverlap ? 3 : 1;
  line << "samples " << subject << ' ' << name_of(row.test) << ' ' << row.bytes << ' ' << operations << ' ' << width;
  for (const float each : us) line << ' ' << each;
  write(line.str());
}

void Results::wrong(size_t subject, const Row& row, const std::string& sentence) {
  if (sentence.empty()) return;
  std::ostringstream line;
  line << "wrong " << subject << ' ' << name_of(row.test) << ' ' << row.bytes << ' ' << sentence;
  write(line.str());
}

void Results::write(const std::string& line) {
  const std::string whole = line + "\n";
  const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const bool done = file >= 0 && ::write(file, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size());
  if (file >= 0) ::close(file);
  if (!done) throw std::runtime_error("cannot write results to " + path_);
}

std::vector<Finding> read_findings(const std::string& text) {
  std::vector<Finding> findings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) findings.push_back(read_line(line));
  return findings;
}

}  // namespace backplane::bench
