// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

namespace backplane::core {

const bool ProcessMark::is_watched_ = watch();

bool ProcessMark::watch() {
  current_ = make(0);
  return ::pthread_atfork(nullptr, nullptr, &on_fork) == 0;
}

// In the child, whose parent may have held any lock.
void ProcessMark::on_fork() { current_ = make((current_.load() >> 32) + 1); }

uint64_t ProcessMark::make(uint64_t forks) {
  return kMagic << 48 | (forks & UINT16_MAX) << 32 | static_cast<uint32_t>(::getpid());
}

std::string inherited_text(ProcessMark made_in) {
  return fmt::format("was made in process {}, of which process {} is a fork; make a new one in this process",
                     made_in.pid(), ProcessMark::current().pid());
}

}  // namespace backplane::core
