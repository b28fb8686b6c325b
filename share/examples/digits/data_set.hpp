// SPDX-License-Identifier: Apache-2.0
//
// Handwritten digits: 8 by 8 pixels each (data/README.md names their source).
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

namespace digits {

inline constexpr int kPixels = 64;
inline constexpr int kClasses = 10;

struct Sample {
  std::array<double, kPixels> pixels;  // 0 to 1
  int digit;
};

struct DataSet {
  std::vector<Sample> training;
  std::vector<Sample> held_out;  // every fifth row; never trained on
};

// digits.csv beside the program: in an installed tree, in a build folder, or in the source tree's share/.
std::filesystem::path default_data_path();

// The whole file. Throws std::runtime_error if it cannot be read or is empty.
std::string read_file(const std::filesystem::path& path);

// Lines of 64 pixels from 0 to 16 and a digit, separated by commas. Throws std::runtime_error that names the line.
DataSet parse(const std::string& csv);

}  // namespace digits
