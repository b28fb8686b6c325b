// SPDX-License-Identifier: Apache-2.0
#include "bench/job.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "backplane/backplane.h"
#include "bench/rank.hpp"
#include "common/failure.hpp"
#include "common/program.hpp"
#include "common/query.hpp"
#include "common/table.hpp"
#include "run/job.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

bool has(const Json& names, const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// The backends that a selection names: one, or those of a composite.
std::vector<std::string> ids_of(const std::string& selection) {
  std::vector<std::string> ids;
  std::istringstream parts(selection);
  for (std::string part; std::getline(parts, part, '+');) ids.push_back(part.substr(0, part.find('?')));
  return ids;
}

// True if the ranks of this backend must be threads of one process. Throws Failure if it cannot be measured here.
bool in_one_process(const std::string& id) {
  const QueryReply info = query(kInfo, id, "while its plugin was loaded", kQueryTimeout);
  if (info.status != BP_OK) throw Failure(kFailed, fmt::format("backend {}: {}", id, printable(info.text)));
  const Json about = Json::parse(info.text);
  if (!has(about["kinds"], "process_group")) {
    throw Failure(kWrongUse, fmt::format("backend {} has no process groups to measure", id));
  }
  const QueryReply viable = query(kProbe, id, "while probing", kQueryTimeout);
  if (viable.status != BP_OK) {
    throw Failure(kFailed, fmt::format("backend {} is not viable here: {}", id, printable(viable.text)));
  }
  return has(about["flags"], "one_process");
}

// Backends that connect processes, without the aliases of a plugin.
std::vector<std::string> viable_backends() {
  bp_error err;
  bp_error_init(&err);
  char* text = nullptr;
  if (bp_registry_list(nullptr, &text, &err) != BP_OK) throw Failure(kFailed, err.text);
  const std::unique_ptr<char, void (*)(void*)> owner(text, bp_free);
  std::vector<std::string> ids;
  const Json list = Json::parse(text);
  for (const Json& backend : list["backends"]) {
    const std::string id = backend["id"];
    const std::string file = backend["file"];
    const bool joins = backend["state"] == "available" && has(backend["kinds"], "process_group") &&
                       !has(backend["flags"], "one_process") && file.ends_with(fmt::format("backplane_{}.so", id));
    if (joins && query(kProbe, id, "while probing", kQueryTimeout).status == BP_OK) ids.push_back(id);
  }
  if (ids.empty())
    throw Failure(kFailed, "no backend is viable on this machine; 'backplane list --probe' shows the reasons");
  return ids;
}

// A file in memory. Ranks open it by a path under /proc, however they were started; it disappears with this process.
class ResultFile {
 public:
  ResultFile() : file_(::memfd_create("backplane-bench", MFD_CLOEXEC)) {
    if (!file_) fail_system("cannot create a file in memory for the results");
  }
  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get()); }
  std::string text() const {
    std::string text;
    std::array<char, 65536> part{};
    for (ssize_t size = 0;
         (size = ::pread(file_.get(), part.data(), part.size(), static_cast<off_t>(text.size()))) > 0;) {
      text.append(part.data(), static_cast<size_t>(size));
    }
    return text;
  }

 private:
  base::Descriptor file_;
};

class Directory {
 public:
  Directory() : path_((fs::temp_directory_path() / "backplane-bench-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail_system(fmt::format("cannot create the directory {}", path_));
  }
  ~Directory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

BenchJob own_ranks(std::vector<std::string> targets, int threads) {
  BenchJob made;
  made.command = {"/proc/self/exe", kBenchRankCommand};
  made.more = {std::to_string(threads)};
  made.more.insert(made.more.end(), targets.begin(), targets.end());
  made.targets = std::move(targets);
  made.launches_itself = threads > 0;
  return made;
}

// An upper bound, to end a job that hangs.
std::chrono::nanoseconds limit_of(const bench::Task& task, size_t targets) {
  const double row = (task.seconds * 3 + 60) * static_cast<double>(targets);
  return std::chrono::seconds(static_cast<int64_t>(60 + row * static_cast<double>(task.rows.size())));
}

}  // namespace

std::vector<BenchJob> backend_jobs(const std::vector<std::string>& names, int ranks) {
  std::vector<std::string> processes;
  std::vector<std::string> threads;
  if (names.empty()) processes = viable_backends();
  for (const std::string& name : names) {
    const std::vector<std::string> ids = ids_of(name);
    const bool together = name != "auto" && std::count_if(ids.begin(), ids.end(), in_one_process) > 0;
    (together ? threads : processes).push_back(name);
  }
  std::vector<BenchJob> jobs;
  if (!processes.empty()) jobs.push_back(own_ranks(std::move(processes), 0));
  if (!threads.empty()) jobs.push_back(own_ranks(std::move(threads), ranks));
  return jobs;
}

int run_bench_job(const BenchJob& bench_job, int ranks, bench::Task task, Signals& signals,
                  std::vector<bench::Result>& results) {
  const ResultFile file;
  std::unique_ptr<Directory> directory;
  if (bench_job.wants_directory) directory = std::make_unique<Directory>();
  task.results = file.path();
  Job job;
  job.ranks_per_node = bench_job.launches_itself ? 1 : ranks;
  job.job_id = random_job_id();
  Plan plan;
  plan.path = find_program(bench_job.command.front());
  plan.arguments = bench_job.command;
  for (const std::string& argument : bench::to_arguments(task)) plan.arguments.push_back(argument);
  plan.arguments.insert(plan.arguments.end(), bench_job.more.begin(), bench_job.more.end());
  if (directory) plan.arguments.push_back(directory->path());
  plan.timeout = limit_of(task, bench_job.targets.size());
  plan.grace = std::chrono::seconds(5);
  plan.output = 2;  // stdout holds the report alone, not what plugins and peers print
  Guard guard;
  const int code = run_job(job, plan, signals, guard);
  try {
    results = bench::read_results(file.text());
  } catch (const std::invalid_argument& error) {
    throw Failure(kFailed,
                  fmt::format("malformed results of {}: {}", join(bench_job.targets), printable(error.what())));
  }
  return code;
}

}  // namespace backplane::tool
