// SPDX-License-Identifier: Apache-2.0
#include "plugin/library_use.hpp"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "error.hpp"
#include "log.hpp"

namespace backplane::core {
namespace {

struct Library {
  int agents = 0;
  bool has_first_group = false;
  int32_t rank = -1;  // of the first group; -1: there was none
  int32_t world_size = 0;
};

struct Libraries {
  std::mutex mutex;
  std::map<const bp_backend*, Library> by_backend;
  pid_t process = 0;  // that registered the exit handler
};

Libraries& libraries() {
  static auto* const instance = new Libraries;  // other threads may use it while the process ends
  return *instance;
}

void finalize_all() {
  Libraries& all = libraries();
  if (all.process != getpid()) return;  // a child of fork
  const std::lock_guard lock(all.mutex);
  for (const auto& [backend, library] : all.by_backend) {
    if (backend->finalize == nullptr) continue;
    if (library.agents == 0) {
      backend->finalize(backend);
    } else {
      log(BP_LOG_WARN,
          "backend {} is not finalized: {} of its groups still exist; destroy them before the process ends",
          backend->id, library.agents);
    }
  }
}

}  // namespace

LibraryUse::LibraryUse(const bp_backend& backend, int32_t rank, int32_t world_size, bool derived)
    : backend_(backend), is_first_((backend.flags & BP_BACKEND_ONE_WORLD) != 0 && !derived) {
  if (!is_first_) return;
  const std::lock_guard lock(libraries().mutex);
  Library& library = libraries().by_backend[&backend];
  if (library.has_first_group) {
    fail(BP_INVALID, "backend {} has one world per process, and a group of it exists; split or shrink that one instead",
         backend.id);
  }
  if (library.rank >= 0 && (library.rank != rank || library.world_size != world_size)) {
    fail(BP_INVALID, "backend {} has one world per process: this process is rank {} of {} in it, not rank {} of {}",
         backend.id, library.rank, library.world_size, rank, world_size);
  }
  library.has_first_group = true;
}

LibraryUse::~LibraryUse() {
  const std::lock_guard lock(libraries().mutex);
  Library& library = libraries().by_backend[&backend_];
  if (is_first_) library.has_first_group = false;
  if (begun_) --library.agents;
}

void LibraryUse::begin(int32_t rank, int32_t world_size) {
  Libraries& all = libraries();
  const std::lock_guard lock(all.mutex);
  Library& library = all.by_backend[&backend_];
  ++library.agents;
  begun_ = true;
  if (is_first_) {
    library.rank = rank;
    library.world_size = world_size;
  }
  if (backend_.finalize == nullptr || all.process == getpid()) return;
  all.process = getpid();
  std::atexit(finalize_all);
}

}  // namespace backplane::core
