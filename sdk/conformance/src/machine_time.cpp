// SPDX-License-Identifier: Apache-2.0
#include "machine_time.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "proc.hpp"

namespace backplane::conformance {

Stopwatch::Waits Stopwatch::waits() {
  Waits all;
  for (const pid_t thread : threads()) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
    Nanoseconds running = 0;
    Nanoseconds waiting = 0;
    if (file >> running >> waiting) all[thread] = waiting;
  }
  return all;
}

Nanoseconds Stopwatch::took(Nanoseconds end) const {
  Nanoseconds waited = 0;
  for (const auto& [thread, waiting] : waits()) {
    const auto before = before_.find(thread);
    waited += waiting - (before == before_.end() ? 0 : before->second);
  }
  return std::max<Nanoseconds>(0, elapsed(end) - waited);
}

double busy_factor() {
  std::ifstream file("/proc/loadavg");
  double minute = 0;
  double other = 0;
  double running = 0;
  file >> minute >> other >> other >> running;  // "0.20 0.18 0.12 1/80 11206"
  const auto cpus = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  return std::clamp(std::max(minute, running) / cpus / 2, 1.0, 8.0);
}

}  // namespace backplane::conformance
