// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "backplane/sdk/worker.hpp"
#include "signals.hpp"

namespace backplane::mpi {
namespace {

// MPI_Finalize waits for the other processes of MPI's world, which may never call it. Less than the core gives a
// process to end. Without the attempt, launchers kill the ranks that are still running.
constexpr std::chrono::seconds kFinalize{4};

struct Process {
  std::atomic<pid_t> user = 0;  // the process that uses MPI; a forked child is another one
  std::mutex mutex;
  std::unique_ptr<World> world;  // never destroyed: operations that were abandoned refer to it
  std::string named;
};

Process& process() {
  static auto* const state = new Process;
  return *state;
}

// Whether a process of this host still runs. One that has ended may be a zombie.
bool is_alive(pid_t pid) {
  std::string line;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), line);
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] != 'Z';
}

sdk::Failure finalised() {
  return {BP_INVALID,
          "mpi: this process has finalised MPI, which cannot be initialised again; call MPI_Finalize after the last "
          "group, or leave it to Backplane"};
}

bool is_forked() {
  const pid_t user = process().user;
  return user != 0 && user != ::getpid();
}

}  // namespace

World::World(const Library& library, bool is_single) : file_(library.file), api_(make_api(library)) {
  if (api_->finalized()) {
    throw finalised();
  }
  if (!api_->initialized()) {
    if (!is_single && !has_launcher(library.abi)) {
      throw sdk::Failure(
          BP_UNSUPPORTED,
          "mpi: no launcher of MPI has started this process; start the ranks, on one node with 'backplane run -n N "
          "--backend mpi PROGRAM', on any number with 'mpirun -n N PROGRAM' of " +
              api_->version());
    }
    if (library.abi != AbiKind::kOpenMpi) check_launcher_connection();  // its launcher has connections of its own
  }
  {
    const sdk::SignalsBlocked blocked;  // for the threads that MPI starts
    const SignalHandlersKept kept;
    prepare(library);
    is_ours_ = api_->init();
  }
  if (is_ours_) std::atexit([] { finalize(); });  // the core calls it only if an init has succeeded
  rank_ = api_->world_rank();
  size_ = api_->world_size();
}

World& World::get(const std::string& library, bool is_single) {
  Process& state = process();
  if (is_forked()) {
    throw sdk::Failure(BP_UNSUPPORTED,
                       "mpi: this process is a forked child of one that uses MPI, which does not survive fork; fork "
                       "before the first group, or start a program (exec)");
  }
  const std::lock_guard lock(state.mutex);
  if (state.world == nullptr) {
    state.user = ::getpid();
    try {
      state.world.reset(new World(open_library(library), is_single));
    } catch (...) {
      state.user = 0;
      throw;
    }
    state.named = library;
  } else if (library != state.named) {
    throw sdk::Failure(BP_INVALID, "mpi: the option library is '" + library + "', but this process uses " +
                                       state.world->file_ + "; give all groups the same");
  }
  state.world->check_usable();
  return *state.world;
}

void World::check_usable() const {
  if (api_->finalized()) throw finalised();
  if (api_->serves_all_threads()) return;
  throw sdk::Failure(BP_UNSUPPORTED,
                     "mpi: " + api_->version() + " does not serve several threads at once; " +
                         (is_ours_ ? "use an MPI that provides MPI_THREAD_MULTIPLE"
                                   : "initialise MPI with MPI_THREAD_MULTIPLE, or let Backplane do it"));
}

std::string World::text() const { return file_ + ": " + api_->version() + ", ABI of " + api_->abi(); }

std::string World::describe(const std::string& library) {
  const Library opened = open_library(library);
  const std::unique_ptr<Api> api = make_api(opened);
  return opened.file + ": " + api->version() + ", ABI of " + api->abi();
}

void World::finalize() noexcept {
  try {
    if (is_forked()) return;
    Process& state = process();
    const std::unique_lock lock(state.mutex, std::try_to_lock);
    if (lock && state.world != nullptr) state.world->end();  // else a thread is in MPI_Init
  } catch (...) {
    // Without memory or a thread for it, MPI is not finalised.
  }
}

void World::add_processes(std::span<const pid_t> processes) {
  const std::lock_guard lock(processes_mutex_);
  processes_.insert(processes.begin(), processes.end());
}

bool World::is_incomplete() {
  if (api_->survives_failures()) return false;
  const std::lock_guard lock(processes_mutex_);
  return has_lost_elsewhere_ || !std::all_of(processes_.begin(), processes_.end(), is_alive);
}

void World::end() {
  if (!is_ours_ || has_ended_ || uses_ > 0 || is_incomplete() || api_->finalized()) return;
  if (progress_.is_running()) return;  // it is in MPI, which did not return
  has_ended_ = true;
  abandoned_.reap(*api_);
  struct Call {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto call = std::make_shared<Call>();
  std::thread thread = sdk::start_thread([this, call] {
    try {
      api_->finalize();
    } catch (const sdk::Failure&) {
      // Nothing depends on MPI any more.
    }
    const std::lock_guard lock(call->mutex);
    call->done = true;
    call->changed.notify_all();
  });
  std::unique_lock lock(call->mutex);
  if (call->changed.wait_for(lock, kFinalize, [&call] { return call->done; })) {
    lock.unlock();
    thread.join();
  } else {
    thread.detach();
  }
}

}  // namespace backplane::mpi
