// SPDX-License-Identifier: Apache-2.0
//
// backplane explain: what `auto` stands for here. It is asked of ranks that choose as those of any job do.
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
constexpr std::string_view kSentence = "auto chose ";  // how the line begins that every group logs

constexpr const char* kExplainFooter = R"(
Starts N ranks that make a group, and prints which backend they agreed on, why, and why not those that are preferred to
it. Where 'backplane bench --tune' has written a tuning table for this host (or BACKPLANE_TUNING_FILE names one), the
fastest by that is chosen, and what was measured is told. BACKPLANE_LOG=info makes any program say the same.)";

struct Question {
  int ranks = 2;
  bool devices = false;  // each rank has one, by its number on its host
};

int ask_ranks(const Question& question) {
  Job job;
  job.ranks_per_node = question.ranks;
  job.job_id = random_job_id();
  Plan plan;
  plan.path = "/proc/self/exe";
  plan.arguments = {"backplane", kRankCommand};
  if (question.devices) plan.arguments.emplace_back(kDevices);
  plan.timeout = kExplainTimeout;
  plan.grace = std::chrono::seconds(1);
  Guard guard;  // forks, so it comes before any thread
  Signals signals;
  return run_job(job, plan, signals, guard);
}

void answer_rank(bool with_device) {
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
  auto question = std::make_shared<Question>();
  CLI::App* command = app.add_subcommand("explain", "Say which backend 'auto' stands for on this machine, and why");
  command->footer(kExplainFooter);
  command->add_option("-n,--nproc", question->ranks, "Ranks of the group")
      ->check(CLI::Range(1, 4096))
      ->option_text("N (2)");
  command->add_flag(kDevices, question->devices, "Ranks that compute on a GPU each: rank i on device i");
  command->callback([question, &exit_code] { exit_code = ask_ranks(*question); });
  auto with_device = std::make_shared<bool>(false);
  CLI::App* rank = app.add_subcommand(kRankCommand)->group("");
  rank->add_flag(kDevices, *with_device);
  rank->callback([with_device] { answer_rank(*with_device); });
}

}  // namespace backplane::tool
