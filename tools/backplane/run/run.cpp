// SPDX-License-Identifier: Apache-2.0
//
// backplane run: starts the ranks of a job on this node.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "common/failure.hpp"
#include "common/program.hpp"
#include "run/job.hpp"
#include "run/job_secret.hpp"

namespace backplane::tool {
namespace {

struct RunSettings {
  Job job;
  double timeout = 0;  // seconds, 0: none
  double grace = 5;
  bool tag_output = false;
  bool keep_going = false;
  bool no_prefix = false;
  std::string secret_file;
  bool secure = false;
};

constexpr const char* kRunFooter = R"(
PROG gets the environment that torch.distributed and Backplane read: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, BACKPLANE_STORE_HOSTED, BACKPLANE_JOB_ID and, with --backend,
BACKPLANE_BACKEND. Rank 0 inherits standard input, the others have none.

With --secure, or --secret-file F (also as BACKPLANE_SECRET_FILE), ranks prove to the store and to each other that they
belong to the job, and what they say is encrypted; backends that cannot do that are refused (backplane list shows AUTH).

When a rank fails, the others are ended, and the exit code is the failed rank's, or 128 + the signal that killed it.
With --keep-going they are not: they are told who is lost, and may go on in a smaller group (bp_group_shrink); each
rank that fails is reported, and the exit code is the first one's.
124: --timeout, 126: PROG cannot be executed, 127: there is no PROG. Signals are passed on to the ranks; a second
Ctrl-C kills them.

  backplane run -n 4 ./train --epochs 3
  backplane run -n 2 --backend zmq -- python3 worker.py
  backplane run -n 4 --secure ./train
  backplane run -n 8 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500 ./train   (on 10.0.0.1)
  backplane run -n 8 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29500 ./train   (on the other))";

// CLI11 does not know of the program, which is split off before.
class RunHelp final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: backplane run -n N [OPTIONS] [--] PROG [ARGS...]\n\n";
  }
};

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

void validate(const RunSettings& settings, bool address_given) {
  const Job& job = settings.job;
  if (settings.secure && job.nodes > 1) {
    throw Failure(kWrongUse,
                  "--secure draws a secret that only this node knows; give the launchers of all nodes the same one by "
                  "--secret-file");
  }
  if (job.node_rank >= job.nodes) {
    throw Failure(kWrongUse, fmt::format("--node-rank is {}, but --nnodes {} allows 0 to {}", job.node_rank, job.nodes,
                                         job.nodes - 1));
  }
  if (job.nodes > 1 && (!address_given || job.master_port == 0)) {
    throw Failure(kWrongUse,
                  "several nodes need --master-addr and --master-port: where node 0 listens, the same on all");
  }
}

int run_job(RunSettings settings, const std::vector<std::string>& program) {
  if (program.empty()) throw Failure(kWrongUse, "which program? backplane run -n N [options] [--] PROG [ARGS...]");
  Job& job = settings.job;
  Plan plan;
  plan.path = find_program(program.front());
  plan.arguments = program;
  if (settings.timeout > 0) plan.timeout = nanoseconds(settings.timeout);
  plan.grace = nanoseconds(settings.grace);
  plan.keep_going = settings.keep_going;
  plan.prefix = settings.tag_output || (job.ranks_per_node > 1 && !settings.no_prefix);
  // All nodes must come to the same id; of what they have in common, only the port is sure to be written alike.
  if (job.job_id.empty()) job.job_id = job.nodes == 1 ? random_job_id() : fmt::format("run-{}", job.master_port);

  Guard guard;  // forks, so it comes before any thread
  if (!settings.secret_file.empty()) use_secret_file(settings.secret_file);
  Descriptor secret;
  if (settings.secure) secret = draw_secret();
  plan.inherited = secret.get();
  Signals signals;  // blocks them, also for the store's threads
  return run_job(job, plan, signals, guard);
}

}  // namespace

CLI::App* add_run(CLI::App& app, const std::vector<std::string>& program, int& exit_code) {
  auto settings = std::make_shared<RunSettings>();
  Job& job = settings->job;
  CLI::App* command = app.add_subcommand("run", "Start a program several times, as the ranks of one job");
  command->formatter(std::make_shared<RunHelp>());
  command->footer(kRunFooter);
  command->add_option("-n,--nproc", job.ranks_per_node, "Ranks to start on this node; required")
      ->required()
      ->check(CLI::Range(1, 65536))
      ->option_text("N");
  command->add_option("--backend", job.backend, "Backend for groups that name none, as in 'gloo?iface=eth0'")
      ->option_text("NAME");
  command->add_option("--nnodes", job.nodes, "Nodes of the job, each with a launcher and N ranks")
      ->check(CLI::Range(1, 65536))
      ->option_text("M (1)");
  command->add_option("--node-rank", job.node_rank, "Which of the nodes this is, from 0")
      ->check(CLI::Range(0, 65535))
      ->option_text("R (0)");
  CLI::Option* address = command->add_option("--master-addr", job.master_addr, "Where node 0 serves the store")
                             ->option_text("HOST (127.0.0.1)");
  command->add_option("--master-port", job.master_port, "Port of the store; one node may leave it open")
      ->check(CLI::Range(1, 65535))
      ->option_text("PORT");
  command
      ->add_option("--job-id", job.job_id,
                   "Keeps jobs apart that share a port; the same on all nodes. Random on one node, else 'run-PORT'")
      ->option_text("ID");
  CLI::Option* file = command
                          ->add_option("--secret-file", settings->secret_file,
                                       "File (mode 0600) with the secret that all ranks and launchers of the job share")
                          ->option_text("FILE");
  command->add_flag("--secure", settings->secure, "Draw such a secret for this job of one node")->excludes(file);
  command->add_option("--timeout", settings->timeout, "Seconds after which the job is ended")
      ->check(CLI::Range(0.001, 1e9))
      ->option_text("SECONDS");
  command->add_option("--grace", settings->grace, "Seconds that ranks have between SIGTERM and SIGKILL")
      ->check(CLI::Range(0.0, 1e9))
      ->option_text("SECONDS (5)");
  command->add_flag("--keep-going", settings->keep_going,
                    "Let the other ranks go on when one fails, instead of ending them");
  CLI::Option* tag = command->add_flag("--tag-output", settings->tag_output,
                                       "Put the rank in front of each line even if there is only one");
  command->add_flag("--no-prefix", settings->no_prefix, "Let ranks write to stdout and stderr directly")->excludes(tag);
  command->callback([settings, address, &program, &exit_code] {
    validate(*settings, address->count() > 0);
    exit_code = run_job(*settings, program);
  });
  return command;
}

}  // namespace backplane::tool
