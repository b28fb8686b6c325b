// SPDX-License-Identifier: Apache-2.0
#include <fnmatch.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <random>
#include <string_view>

#include "backplane/conformance/conformance.hpp"
#include "child.hpp"
#include "facts.hpp"
#include "supervisor.hpp"

namespace backplane::conformance {
namespace {

constexpr int32_t kMostRanks = kMaxRanks;

Result result_of(const Case& which) {
  Result result;
  result.group = which.group;
  result.name = which.name;
  result.about = which.about;
  result.level = which.level;
  return result;
}

bool wanted(const Case& which, const Settings& settings) {
  if (settings.filters.empty()) return which.level <= settings.level;
  const std::string name = std::string(which.group) + "." + which.name;
  return std::any_of(settings.filters.begin(), settings.filters.end(), [&](const std::string& filter) {
    return filter == which.group || fnmatch(filter.c_str(), name.c_str(), 0) == 0;
  });
}

double seconds_since(Nanoseconds begin) { return static_cast<double>(now() - begin) / static_cast<double>(kSecond); }

class Suite {
 public:
  Suite(const Subject& subject, const Settings& settings) : subject_(subject), settings_(settings) {
    report_.subject = subject.path;
    report_.backend = subject.backend;
    report_.ranks = settings.ranks;
    report_.level = settings.level;
    report_.seed = settings.seed != 0 ? settings.seed : std::random_device()() + UINT64_C(1);
  }

  Report run() {
    if (settings_.ranks < 1 || settings_.ranks > kMostRanks) {
      report_.error = fmt::format("the number of ranks must be between 1 and {}", kMostRanks);
    } else if (subject_.path.empty() == (subject_.entry == nullptr)) {
      report_.error = "name a file or hand over an entry, one of both";
    } else if (const std::string problem = subject_.path.empty() ? "" : file_problem(subject_.path); !problem.empty()) {
      report_.error = fmt::format("cannot check {}: {}", subject_.path, problem);
    } else {
      describe();
      run_cases();
    }
    report_.seconds = seconds_since(begin_);
    return std::move(report_);
  }

 private:
  RunSettings run_settings(int32_t ranks) const {
    const bool one_process = (facts_.flags & BP_BACKEND_ONE_PROCESS) != 0;
    const bool one_world = (facts_.flags & BP_BACKEND_ONE_WORLD) != 0;
    return {ranks,
            one_process,
            report_.seed,
            settings_.timeout_scale,
            settings_.on_device,
            settings_.in_child,
            one_world ? settings_.pmix_server : ""};
  }

  void describe() {
    Outcomes outcomes = run_case(describing(), subject_, run_settings(1));
    facts_ = std::move(outcomes.facts);
    if (!facts_.known) {
      Result failed = result_of(describing());
      failed.verdict = Verdict::kFailed;
      failed.findings = std::move(outcomes.findings);
      failed.output = std::move(outcomes.output);
      report_.results.push_back(std::move(failed));
      if (!outcomes.harness_errors.empty()) report_.error = outcomes.harness_errors.front();
      return;
    }
    if (report_.subject.empty()) report_.subject = facts_.vendor;
    report_.backend = facts_.id;
    report_.version = facts_.version;
    for (const auto& [op, capability] : facts_.capabilities) add_cells(capability);
    if (facts_.kinds == BP_KIND_RPC) report_.notes.push_back("no case tests RPC agents");
    const std::string file = std::filesystem::path(subject_.path).filename();
    if (!subject_.path.empty() && facts_.is_single && file != fmt::format("backplane_{}.so", facts_.id)) {
      report_.notes.push_back(
          fmt::format("the file {} holds the backend {}; programs look for {} in a file of the name "
                      "backplane_{}.so",
                      file, facts_.id, facts_.id, facts_.id));
    }
  }

  void add_cells(const bp_capability& capability) {
    for (uint32_t dtype = 0; dtype < BP_DTYPE_COUNT; ++dtype) {
      if ((capability.dtypes & BP_BIT(dtype)) == 0) continue;
      for (uint32_t memory = 0; memory < BP_MEMORY_COUNT; ++memory) {
        if ((capability.memory & BP_BIT(memory)) == 0) continue;
        if (capability.reduce_ops == 0) report_.matrix.push_back({capability.op, dtype, 0, memory});
        for (uint32_t reduce_op = 0; reduce_op < BP_REDUCE_OP_COUNT; ++reduce_op) {
          if ((capability.reduce_ops & BP_BIT(reduce_op)) == 0) continue;
          report_.matrix.push_back({capability.op, dtype, reduce_op, memory});
        }
      }
    }
  }

  void run_cases() {
    std::vector<const Case*> chosen;
    for (const Case& which : all_cases()) {
      if (wanted(which, settings_)) chosen.push_back(&which);
    }
    const auto needs_probe = [](const Case* which) { return std::string_view(which->group) != "load"; };
    if (chosen.empty()) {
      report_.error = "no case has such a name";
    } else if (!facts_.refusal.empty() && std::any_of(chosen.begin(), chosen.end(), needs_probe)) {
      report_.error = fmt::format("the probe of backend {} refuses this machine: {}", facts_.id, facts_.refusal);
    }
    for (size_t i = 0; i < chosen.size() && report_.error.empty(); ++i) {
      tell({i, chosen.size(), nullptr, std::string(chosen[i]->group) + "." + chosen[i]->name, &report_});
      report_.results.push_back(run_one(*chosen[i]));
      report_.seconds = seconds_since(begin_);
      tell({i + 1, chosen.size(), &report_.results.back(), "", &report_});
    }
  }

  void tell(const Progress& progress) const {
    if (settings_.on_progress) settings_.on_progress(progress);
  }

  Result run_one(const Case& which) {
    Result result = result_of(which);
    result.seed = report_.seed;
    result.reason = inapplicable(which, facts_, settings_.ranks, !subject_.path.empty());
    if (!result.reason.empty()) return result;
    const Nanoseconds begin = now();
    for (const int32_t world : worlds(which, settings_.ranks)) {
      run_world(which, world, result);
      if (!result.findings.empty() || !result.reason.empty()) break;
    }
    result.seconds = seconds_since(begin);
    result.verdict = !result.findings.empty() ? Verdict::kFailed
                     : !result.reason.empty() ? Verdict::kSkipped
                                              : Verdict::kPassed;
    if (result.verdict == Verdict::kFailed) result.reason.clear();
    compare_with_known(result);
    result.reproduce = fmt::format("{} {} -n {} --filter {}.{} --seed {}", settings_.command,
                                   subject_.path.empty() ? facts_.id : subject_.path, settings_.ranks, which.group,
                                   which.name, report_.seed);
    return result;
  }

  void compare_with_known(Result& result) const {
    const auto known = settings_.known_failures.find(result.group + "." + result.name);
    if (known == settings_.known_failures.end()) return;
    if (result.verdict == Verdict::kFailed) result.known = known->second.reason;
    if (result.verdict != Verdict::kPassed || known->second.is_intermittent) return;
    result.verdict = Verdict::kFailed;
    result.outdated = true;
    result.findings.push_back({-1, fmt::format("the known failure: {}", known->second.reason),
                               "the case passed; remove it from the known failures", ""});
  }

  void run_world(const Case& which, int32_t world, Result& result) {
    Outcomes outcomes = run_case(which, subject_, run_settings(world));
    for (Finding& finding : outcomes.findings) {
      if (!which.worlds.empty()) finding.step += fmt::format(" (world size {})", world);
      result.findings.push_back(std::move(finding));
    }
    if (!outcomes.skips.empty()) result.reason = outcomes.skips.front();
    if (!outcomes.findings.empty()) result.output = outcomes.output;
    if (!outcomes.harness_errors.empty()) {
      report_.error = fmt::format("{}.{}: {}", which.group, which.name, outcomes.harness_errors.front());
    }
    for (const Cell& seen : outcomes.cells) count(seen);
  }

  void count(const Cell& seen) {
    for (Cell& cell : report_.matrix) {
      if (cell.op != seen.op || cell.dtype != seen.dtype || cell.reduce_op != seen.reduce_op) continue;
      if (cell.memory != seen.memory) continue;
      cell.passed += seen.passed;
      cell.failed += seen.failed;
    }
  }

  const Subject& subject_;
  const Settings& settings_;
  const Nanoseconds begin_ = now();
  Facts facts_;
  Report report_;
};

}  // namespace

std::vector<Result> cases() {
  std::vector<Result> list;
  for (const Case& which : all_cases()) list.push_back(result_of(which));
  return list;
}

Report check(const Subject& subject, const Settings& settings) {
  try {
    return Suite(subject, settings).run();
  } catch (const std::exception& error) {
    Report report;
    report.error = error.what();
    return report;
  }
}

int exit_code(const Report& report) {
  if (!report.error.empty()) return 2;
  const bool failed = std::any_of(report.results.begin(), report.results.end(), [](const Result& result) {
    const bool counts = result.level != Level::kFull || result.outdated;
    return counts && result.verdict == Verdict::kFailed && result.known.empty();
  });
  return failed ? 1 : 0;
}

}  // namespace backplane::conformance
