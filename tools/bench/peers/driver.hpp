// SPDX-License-Identifier: Apache-2.0
//
// The main function of a peer's driver.
#pragma once

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "measure/measure.hpp"
#include "measure/pin.hpp"

namespace backplane::bench {

// `make` creates the target from the driver's own arguments, which follow those of the task.
template <typename Make>
int drive(int count, char** arguments, const std::string& name, const Make& make) {
  try {
    const std::vector<std::string> words(arguments + 1, arguments + count);
    const Task task = to_task(words);
    const auto target = make(std::vector<std::string>(words.begin() + kTaskArguments, words.end()));
    if (task.pin) pin_thread(target->rank());
    measure(task, {target.get()}, progress_line(task, name));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "backplane: peer %s: %s\n", name.c_str(), error.what());
    return 1;
  }
}

}  // namespace backplane::bench
