// SPDX-License-Identifier: Apache-2.0
//
// MPI in this process: opened and initialised once, finalised when the process ends. A program that initialises MPI
// itself also finalises it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "abandoned.hpp"
#include "api.hpp"
#include "creation_tags.hpp"
#include "progress.hpp"

namespace backplane::mpi {

class World {
 public:
  // Opens the library and initialises MPI at the first call, which blocks until the other processes of MPI's world
  // have come. Throws BP_UNSUPPORTED with the reason; BP_INVALID if another library is in use.
  static World& get(const std::string& library, bool is_single);
  // Describes the library that get would use. Throws BP_UNSUPPORTED with the reason.
  static std::string describe(const std::string& library);
  // Finalises MPI if this plugin has initialised it. Gives up when the other processes do not come. May run at exit.
  static void finalize() noexcept;

  // A group, or the init of one, which cannot be interrupted in MPI. While one exists, MPI is not finalised.
  class Use {
   public:
    explicit Use(World& world) : world_(world) { ++world_.uses_; }
    ~Use() { --world_.uses_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    World& world_;
  };

  Api& api() { return *api_; }
  AbandonedRequests& abandoned() { return abandoned_; }
  Progress& progress() { return progress_; }
  CreationTags& creation_tags() { return creation_tags_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string text() const;  // library, version and ABI

  // The processes of this host that have taken part in a group. MPI_Finalize is left out if one of them has ended: the
  // others then wait for it in vain, and MPICH ends this process. One that still runs finalises MPI as well.
  void add_processes(std::span<const pid_t> processes);
  // A process of another host counts as ended, or one that is not known.
  void report_lost_elsewhere() noexcept { has_lost_elsewhere_ = true; }

 private:
  World(const Library& library, bool is_single);
  void check_usable() const;
  bool is_incomplete();  // a process has ended
  void end();

  const std::string file_;
  const std::unique_ptr<Api> api_;
  AbandonedRequests abandoned_;
  Progress progress_{*api_, abandoned_};
  CreationTags creation_tags_;
  bool is_ours_ = false;  // initialised by this plugin
  bool has_ended_ = false;
  int rank_ = 0;
  int size_ = 1;
  std::atomic<int> uses_ = 0;
  std::atomic<bool> has_lost_elsewhere_ = false;
  std::mutex processes_mutex_;
  std::set<pid_t> processes_;
};

}  // namespace backplane::mpi
