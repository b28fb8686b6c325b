// SPDX-License-Identifier: Apache-2.0
#include "plugin/library_use.hpp"

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "error.hpp"
#include "liveness/exit_handler.hpp"
#include "log.hpp"
#include "process.hpp"

namespace backplane::core {
namespace {

struct Library {
  int agents = 0;
  bool is_begun = false;  // had an agent
  bool has_first_group = false;
  int32_t rank = -1;  // of the first group; -1: there was none
  int32_t world_size = 0;
};

struct Libraries {
  std::mutex mutex;
  std::map<const bp_backend*, Library> by_backend;
  std::optional<ExitHandler> exit_handler;  // once a backend needs it
};

Libraries& libraries() {
  static constinit PerProcess<Libraries> instance;
  return *instance;
}

void finalize_all() {
  Libraries& all = libraries();
  const std::lock_guard lock(all.mutex);
  for (const auto& [backend, library] : all.by_backend) {
    if (backend->finalize == nullptr) continue;
    if (library.agents == 0) {
      backend->finalize(backend);
    } else {
      log(BP_LOG_WARN,
          "backend {} is not finalized: {} of its groups did not end; destroy them before the process ends",
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
  if (!std::exchange(library.is_begun, true)) ExitHandler::run_before_loaded_libraries();
  ++library.agents;
  begun_ = true;
  if (is_first_) {
    library.rank = rank;
    library.world_size = world_size;
  }
  if (backend_.finalize == nullptr || all.exit_handler) return;
  all.exit_handler.emplace(ExitHandler::Order::kLibraries, [](const Deadline&) { finalize_all(); });
}

}  // namespace backplane::core
