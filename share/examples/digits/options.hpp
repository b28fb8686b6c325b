// SPDX-License-Identifier: Apache-2.0
//
// The command line of the example.
#pragma once

#include <filesystem>

#include "training.hpp"

namespace digits {

struct Options {
  Settings settings;
  std::filesystem::path data;   // empty: default_data_path()
  double require_accuracy = 0;  // percent; the program fails below it
  bool help = false;
};

extern const char* const kUsage;

// Throws std::runtime_error.
Options parse_options(int argc, char** argv);

}  // namespace digits
