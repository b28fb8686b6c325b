// SPDX-License-Identifier: Apache-2.0
//
// The results file of measuring programs; measure.hpp describes its lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "measure/task.hpp"

namespace backplane::bench {

class Results {
 public:
  // Appends to the file, which may be a descriptor of another process (/proc/PID/fd/N). Each line is one write, so
  // lines of several processes do not mix. Throws std::runtime_error.
  explicit Results(const std::string& path);

  void samples(size_t target, const Row& row, uint64_t operations, const std::vector<float>& us);
  void wrong(size_t target, const Row& row, const std::string& text);  // writes nothing if it is empty

 private:
  void write(const std::string& line);

  const std::string path_;
};

// One line of the file.
struct Result {
  size_t target = 0;
  Row row;
  std::string wrong;  // not empty: the fields below are unused
  uint64_t operations = 0;
  std::vector<double> us;       // samples
  std::vector<double> alone;    // of overlap: the operation alone
  std::vector<double> compute;  // of overlap: the computation alone
};

// Throws std::invalid_argument with the malformed line.
std::vector<Result> read_results(const std::string& text);

}  // namespace backplane::bench
