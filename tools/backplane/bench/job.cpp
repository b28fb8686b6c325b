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
#include <stdexcept>
#include <system_error>

#include "backplane/backplane.h"
#include "bench/rank.hpp"
#include "common/failure.hpp"
#include "common/program.hpp"
#include "common/question.hpp"
#include "common/table.hpp"
#include "run/job.hpp"

namespace backplane::tool {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

bool has(const Json& names, const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); }

std::string id_of(const std::string& selection) { return selection.substr(0, selection.find('?')); }

// Must the ranks of this backend be threads of one process? Throws if it cannot be measured here at all.
bool in_one_process(const std::string& id) {
  const Answer info = ask(kInfo, id, "while its plugin was loaded", kAnswerTime);
  if (info.status != BP_OK) throw Failure(kFailed, fmt::format("backend {}: {}", id, printable(info.text)));
  const Json about = Json::parse(info.text);
  if (!has(about["kinds"], "process_group")) {
    throw Failure(kWrongUse, fmt::format("{} makes no process groups, so there is nothing to measure", id));
  }
  const Answer viable = ask(kProbe, id, "while probing", kAnswerTime);
  if (viable.status != BP_OK) {
    throw Failure(kFailed, fmt::format("backend {} is not viable here: {}", id, printable(viable.text)));
  }
  return has(about["flags"], "one_process");
}

// What joins processes; a plugin's other names for the same backend are left out.
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
    if (joins && ask(kProbe, id, "while probing", kAnswerTime).status == BP_OK) ids.push_back(id);
  }
  if (ids.empty()) throw Failure(kFailed, "no viable backend was found; backplane list --probe says why");
  return ids;
}

// Memory with a name under /proc, which ranks can open however they were started, and which ends with this process.
class ResultFile {
 public:
  ResultFile() : file_(::memfd_create("backplane-bench", MFD_CLOEXEC)) {
    if (!file_) fail_system("cannot make a file for the results");
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
  Descriptor file_;
};

class Directory {
 public:
  Directory() : path_((fs::temp_directory_path() / "backplane-bench-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail_system(fmt::format("cannot make the directory {}", path_));
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

Contestant own_ranks(std::vector<std::string> subjects, int threads) {
  Contestant made;
  made.command = {"/proc/self/exe", kBenchRankCommand};
  made.more = {std::to_string(threads)};
  made.more.insert(made.more.end(), subjects.begin(), subjects.end());
  made.subjects = std::move(subjects);
  made.launches_itself = threads > 0;
  return made;
}

// Long enough for anything but a hang.
std::chrono::nanoseconds limit_of(const bench::Task& task, size_t subjects) {
  const double row = (task.seconds * 3 + 60) * static_cast<double>(subjects);
  return std::chrono::seconds(static_cast<int64_t>(60 + row * static_cast<double>(task.rows.size())));
}

}  // namespace

std::vector<Contestant> contestants_of(const std::vector<std::string>& names, int ranks) {
  std::vector<std::string> processes;
  std::vector<std::string> threads;
  if (names.empty()) processes = viable_backends();
  for (const std::string& name : names) {
    const bool together = name != "auto" && in_one_process(id_of(name));
    (together ? threads : processes).push_back(name);
  }
  std::vector<Contestant> contestants;
  if (!processes.empty()) contestants.push_back(own_ranks(std::move(processes), 0));
  if (!threads.empty()) contestants.push_back(own_ranks(std::move(threads), ranks));
  return contestants;
}

int run_contestant(const Contestant& contestant, int ranks, bench::Task task, Signals& signals,
                   std::vector<bench::Finding>& findings) {
  const ResultFile results;
  std::unique_ptr<Directory> directory;
  if (contestant.wants_directory) directory = std::make_unique<Directory>();
  task.results = results.path();
  Job job;
  job.ranks_per_node = contestant.launches_itself ? 1 : ranks;
  job.job_id = random_job_id();
  Plan plan;
  plan.path = find_program(contestant.command.front());
  plan.arguments = contestant.command;
  for (const std::string& argument : bench::to_arguments(task)) plan.arguments.push_back(argument);
  plan.arguments.insert(plan.arguments.end(), contestant.more.begin(), contestant.more.end());
  if (directory) plan.arguments.push_back(directory->path());
  plan.timeout = limit_of(task, contestant.subjects.size());
  plan.grace = std::chrono::seconds(5);
  plan.output = 2;  // what plugins and peers print is no part of the report
  Guard guard;
  const int code = run_job(job, plan, signals, guard);
  try {
    findings = bench::read_findings(results.text());
  } catch (const std::invalid_argument& error) {
    throw Failure(kFailed, fmt::format("{} gave results that nobody understands: {}", join(contestant.subjects),
                                       printable(error.what())));
  }
  return code;
}

}  // namespace backplane::tool
