// SPDX-License-Identifier: Apache-2.0
//
// Ranks of shm in separate processes that meet through a file store.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "backplane/backplane.hpp"
#include "support/environment.hpp"
#include "support/system_calls.hpp"

namespace backplane::shm::test {

// The files of a job: its store, the results of its ranks, and an empty tuning table.
struct JobDirectory {
  JobDirectory() {
    std::ofstream(path + "/tuning") << R"({"format": "backplane-tuning/1", "host": "here", "exchange_measured": []})";
  }
  backplane::test::ScopedDirectory directory;
  const std::string path = directory.path().string();
};

inline backplane::ProcessGroup join(const JobDirectory& place, int rank, const std::string& backend) {
  setenv("BACKPLANE_TUNING_FILE", (place.path + "/tuning").c_str(), 1);  // ignore this host's tuning
  backplane::GroupOptions options;
  options.backend = backend;
  options.init_method = "file://" + place.path + "/store";
  options.rank = rank;
  options.world_size = 3;
  options.timeout = std::chrono::seconds(20);
  return backplane::init_process_group(options);
}

// Runs a rank of three. The result is returned through a file, because a test must not end in a child.
inline std::string run_rank(const JobDirectory& place, int rank, const std::string& backend) {
  try {
    backplane::ProcessGroup group = join(place, rank, backend);
    std::vector<int> sum = {rank + 1};
    group.all_reduce(sum);
    std::vector<int> large(100'000, rank);
    group.all_reduce(large);
    backplane::Memory<int> shared = group.allocate<int>(100'000);
    std::fill(shared.begin(), shared.end(), rank);
    group.all_reduce(shared);
    if (shared[99'999] != 3) return "wrong in allocated memory";
    if (group.backend() == "shm" && !shared.native()) return "right, but ordinary";
    const std::string used = group.backend();
    backplane::destroy_process_group();
    if (sum[0] != 6 || large[99'999] != 3) return "wrong";
    return backend == "auto" ? used : "right";
  } catch (const std::exception& e) {
    return e.what();
  }
}

inline bool may(const std::function<bool(int rank)>& prepare, int rank) {
  const pid_t child = fork();
  if (child == 0) _exit(prepare(rank) ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

// Runs the ranks in separate processes. `prepare` returns false if it lacks permission. It is tried first; the result
// is empty then.
inline std::vector<std::string> run(const JobDirectory& place, const std::function<bool(int rank)>& prepare,
                                    const std::string& backend = "shm",
                                    std::string (*part)(const JobDirectory&, int, const std::string&) = run_rank) {
  for (int rank = 0; rank < 3; ++rank) {
    if (!may(prepare, rank)) return {};
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    if (!prepare(rank)) _exit(1);
    const pid_t inner = fork();  // the first process of a new pid namespace, if requested
    if (inner == 0) {
      std::ofstream(place.path + "/" + std::to_string(rank)) << part(place, rank, backend) << std::flush;
      _exit(0);
    }
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  std::vector<std::string> value;
  for (int rank = 0; rank < 3; ++rank) {
    waitpid(children[static_cast<size_t>(rank)], nullptr, 0);
    std::ifstream file(place.path + "/" + std::to_string(rank));
    value.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return value;
}

// A different boot id simulates another host.
inline bool move_to_another_host(const JobDirectory& place) {
  const std::string file = place.path + "/boot_id";
  std::ofstream(file) << "00000000-1111-2222-3333-444444444444\n" << std::flush;
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount(file.c_str(), "/proc/sys/kernel/random/boot_id", nullptr, MS_BIND, nullptr) == 0;
}

using backplane::test::answer_with;

}  // namespace backplane::shm::test
