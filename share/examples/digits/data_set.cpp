// SPDX-License-Identifier: Apache-2.0
#include "data_set.hpp"

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace fs = std::filesystem;

namespace digits {

namespace {

constexpr int kDarkest = 16;
constexpr int kHeldOutEvery = 5;

Sample parse_line(const std::string& line, size_t number) {
  const auto refuse = [number](const char* what) {
    throw std::runtime_error("line " + std::to_string(number) + " of the data is not 64 pixels and a digit: " + what);
  };
  Sample sample{};
  const char* at = line.data();
  const char* const end = at + line.size();
  for (int column = 0; column <= kPixels; ++column) {
    int value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc()) refuse("a number is missing");
    if (value < 0 || value > (column < kPixels ? kDarkest : kClasses - 1)) refuse("a number is out of range");
    if (column < kPixels) {
      sample.pixels[static_cast<size_t>(column)] = static_cast<double>(value) / kDarkest;
      if (next == end || *next != ',') refuse("a comma is missing");
      at = next + 1;
    } else {
      sample.digit = value;
      if (next != end && *next != '\r') refuse("it is too long");
    }
  }
  return sample;
}

}  // namespace

fs::path default_data_path() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path installed = folder / "../share/backplane/data/digits.csv";
  for (const fs::path& path : {installed, folder / "../data/digits.csv"}) {
    if (fs::exists(path, error)) return path.lexically_normal();
  }
  return installed.lexically_normal();
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file || text.empty()) {
    throw std::runtime_error("cannot read the digits from " + path.string() + "; say with --data where digits.csv is");
  }
  return text;
}

DataSet parse(const std::string& csv) {
  DataSet data;
  std::istringstream lines(csv);
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    const Sample sample = parse_line(line, number);
    (number % kHeldOutEvery == 0 ? data.held_out : data.training).push_back(sample);
  }
  if (data.held_out.empty()) throw std::runtime_error("the data has too few lines to hold some out");
  return data;
}

}  // namespace digits
