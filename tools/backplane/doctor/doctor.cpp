// SPDX-License-Identifier: Apache-2.0
//
// backplane doctor: examines this host, or all hosts of a job, before a program runs there.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.hpp"
#include "common/failure.hpp"
#include "doctor/checks.hpp"
#include "doctor/job.hpp"
#include "doctor/report.hpp"

namespace backplane::tool {
namespace {

struct DoctorSettings {
  bool json = false;
  double timeout = 30;  // seconds
};

constexpr const char* kDoctorFooter = R"(
Examines this host: names, interfaces, /dev/shm, limits, processors, clock, secret, plugins, GPUs and variables. As the
program of 'backplane run' it also compares the ranks of the job and measures the network between its hosts, and rank 0
prints the result. Needs no backend. Each finding says what to do:
  error     jobs fail
  warning   some jobs fail, or are slow
  note      jobs run

Exit codes: 0 if there are notes at most; 1 if there is an error or a warning, or if a host cannot be examined; 2 wrong
use.

Examples:
  backplane doctor
  backplane doctor --json | jq '.findings[] | select(.severity == "error")'
  backplane run -n 1 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500 -- backplane doctor)";

int examine(const DoctorSettings& settings) {
  const auto timeout =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(settings.timeout));
  const DoctorJob job = job_from_environment();
  Observations seen;
  if (job.world_size == 1) {
    seen.ranks.push_back(collect_facts(0, "", true));
  } else {
    seen = observe_job(job, timeout);
    if (job.rank != 0) return 0;
  }
  const Findings findings = diagnose(seen);
  fmt::print("{}", settings.json ? json_report(seen, findings) : text_report(seen, findings));
  const bool is_healthy = std::all_of(findings.begin(), findings.end(),
                                      [](const Finding& each) { return each.severity == Severity::kNote; });
  return is_healthy ? 0 : kFailed;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<DoctorSettings>();
  CLI::App* command =
      app.add_subcommand("doctor", "Examine this host, or all hosts of a job, before a program runs there");
  command->footer(kDoctorFooter);
  command->add_flag("--json", settings->json, "Print JSON");
  command->add_option("--timeout", settings->timeout, "How long rank 0 waits for the other ranks in each step")
      ->check(CLI::Range(0.1, 1e6))
      ->option_text("SECONDS (30)");
  command->callback([settings, &exit_code] { exit_code = examine(*settings); });
}

}  // namespace backplane::tool
