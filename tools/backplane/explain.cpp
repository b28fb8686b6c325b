// SPDX-License-Identifier: Apache-2.0
//
// backplane explain: the backend that `auto` chooses here. Starts ranks, which choose as those of any job do.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "backplane/process_group.hpp"
#include "commands.hpp"
#include "common/failure.hpp"
#include "run/job.hpp"

namespace backplane::tool {
namespace {

constexpr const char* kRankCommand = "__explain";
constexpr const char* kDevices = "--devices";
constexpr std::chrono::seconds kExplainTimeout{30};
constexpr std::string_view kSentence = "auto chose ";  // the beginning of the line that every group logs

constexpr const char* kExplainFooter = R"(
Starts N ranks that form a group, and prints the backend that they agreed on, the reason, and why preferred backends were
not chosen. With a tuning table, written by 'backplane bench --tune' or named by BACKPLANE_TUNING_FILE, 'auto' chooses the
fastest backend of the table, and the measured times are printed. BACKPLANE_LOG=info logs the same in any program.

Exit codes: 0; 1 if no backend is viable; 2 wrong use; 124 if the ranks do not agree within 30 s.

Examples:
  backplane explain
  backplane explain -n 8 --devices)";

struct Request {
  int ranks = 2;
  bool devices = false;  // rank i on this host uses device i
};

int start_ranks(const Request& request) {
  Job job;
  job.ranks_per_node = request.ranks;
  job.job_id = random_job_id();
  Plan plan;
  plan.path = "/proc/self/exe";
  plan.arguments = {"backplane", kRankCommand};
  if (request.devices) plan.arguments.emplace_back(kDevices);
  plan.timeout = kExplainTimeout;
  plan.grace = std::chrono::seconds(1);
  Guard guard;  // forks, so it comes before any thread
  Signals signals;
  return run_job(job, plan, signals, guard);
}

void print_choice(bool with_device) {
  std::string reason;
  const auto listen = [](void* ctx, uint32_t level, const char* text) {
    const std::string_view line = text;
    const size_t at = line.find(kSentence);
    if (level == BP_LOG_INFO && at != std::string_view::npos) {
      *static_cast<std::string*>(ctx) = line.substr(at + kSentence.size());
    } else if (level >= BP_LOG_WARN) {
      fmt::print(stderr, "backplane: {}\n", text);
    }
  };
  bp_set_log(listen, &reason);
  GroupOptions options;
  options.backend = "auto";
  options.timeout = kExplainTimeout;
  if (const char* const number = std::getenv("LOCAL_RANK"); with_device && number != nullptr) {
    options.device = std::atoi(number);
  }
  {
    const ProcessGroup group = ProcessGroup::create(options);
    if (group.rank() == 0) fmt::print("{}\n", reason);
  }
  bp_set_log(nullptr, nullptr);
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  auto request = std::make_shared<Request>();
  CLI::App* command = app.add_subcommand("explain", "Show which backend 'auto' chooses on this machine, and why");
  command->footer(kExplainFooter);
  command->add_option("-n,--ranks", request->ranks, "Ranks of the group")
      ->check(CLI::Range(1, 4096))
      ->option_text("N (2)");
  command->add_flag(kDevices, request->devices, "Give each rank a GPU: rank i uses device i");
  command->callback([request, &exit_code] { exit_code = start_ranks(*request); });
  auto with_device = std::make_shared<bool>(false);
  CLI::App* rank = app.add_subcommand(kRankCommand)->group("");
  rank->add_flag(kDevices, *with_device);
  rank->callback([with_device] { print_choice(*with_device); });
}

}  // namespace backplane::tool
