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
#include "run/rank_environment.hpp"
#include "run/torch_port.hpp"

namespace backplane::tool {
namespace {

struct RunSettings {
  Job job;
  double timeout = 0;  // seconds, 0: none
  double grace = 5;
  bool tag_output = false;
  bool keep_going = false;
  bool no_prefix = false;
  bool no_pmi = false;
  bool pmix = false;
  bool torch = false;
  std::string secret_file;
  bool secure = false;
};

constexpr const char* kRunFooter = R"(
Each rank gets MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK (the node),
BACKPLANE_STORE_HOSTED and BACKPLANE_JOB_ID in its environment, and BACKPLANE_BACKEND with --backend. torch.distributed
reads the same variables, and serves a store of its own at MASTER_PORT: programs that use it need --torch, with which
MASTER_PORT is a free port, and BACKPLANE_STORE the address of the job's store.
With PMI_FD, PMI_RANK and PMI_SIZE, programs of MPICH and Intel MPI start as the same ranks.
With --backend mpi (or BACKPLANE_BACKEND), or --pmix, a PMIx server runs beside the ranks, and Open MPI starts as them.
Rank 0 inherits standard input; the other ranks read from /dev/null.

With --secure or --secret-file (or BACKPLANE_SECRET_FILE) the ranks and the store authenticate each other and encrypt what
they send. Backends that cannot do that are refused; 'backplane list' shows them in the column AUTH.

If a rank fails, the launcher sends SIGTERM to the others, and SIGKILL after --grace. With --keep-going it does not: the
other ranks learn which rank was lost and may continue in a smaller group (bp_group_shrink). Signals are forwarded to the
ranks. After SIGINT, SIGTERM or SIGHUP they get SIGKILL after --grace, or at once if a second one arrives. Ctrl-Z stops the
whole job, and fg resumes it.

Exit codes: 0; the first failed rank's own, or 128 + the signal that killed it; 2 wrong use; 124 if --timeout expired; 126
if PROGRAM cannot be executed; 127 if it was not found.

Examples:
  backplane run -n 4 ./train --epochs 3
  backplane run -n 2 --backend zmq -- python3 worker.py
  backplane run -n 4 --secure ./train
  backplane run -n 4 --torch python3 train.py
  backplane run -n 8 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500 ./train   (on 10.0.0.1)
  backplane run -n 8 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29500 ./train   (on the other node))";

// main() removes the program from the command line before CLI11 sees it.
class RunHelp final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: backplane run -n N [OPTION]... [--] PROGRAM [ARGUMENT]...\n\n";
  }
};

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

void validate(const RunSettings& settings, bool address_given) {
  const Job& job = settings.job;
  if (settings.secure && job.nodes > 1) {
    throw Failure(kWrongUse,
                  "--secure creates a secret on this node alone; with --nnodes, give all launchers the same secret by "
                  "--secret-file");
  }
  if (job.node_rank >= job.nodes) {
    throw Failure(kWrongUse, fmt::format("--node-rank is {}, but --nnodes {} allows 0 to {}", job.node_rank, job.nodes,
                                         job.nodes - 1));
  }
  if (settings.torch && job.nodes > 1 && job.master_port == UINT16_MAX) {
    throw Failure(kWrongUse, "--torch with several nodes uses the port after --master-port, which is 65535; lower it");
  }
  if (job.nodes > 1 && (!address_given || job.master_port == 0)) {
    throw Failure(
        kWrongUse,
        "--nnodes needs --master-addr and --master-port, the address at which node 0 listens; the same on all nodes");
  }
}

int run_job(RunSettings settings, const std::vector<std::string>& program) {
  if (program.empty())
    throw Failure(kWrongUse, "no program is given; usage: backplane run -n N [OPTION]... [--] PROGRAM [ARGUMENT]...");
  Job& job = settings.job;
  Plan plan;
  plan.path = find_program(program.front());
  plan.arguments = program;
  if (settings.timeout > 0) plan.timeout = nanoseconds(settings.timeout);
  plan.grace = nanoseconds(settings.grace);
  plan.keep_going = settings.keep_going;
  plan.offers_pmi = !settings.no_pmi;
  if (!settings.no_pmi) plan.pmix = pmix_use(job, settings.pmix);
  plan.prefix = settings.tag_output || (job.ranks_per_node > 1 && !settings.no_prefix);
  // The same on all nodes: of their common settings only the port has a single spelling.
  if (job.job_id.empty()) job.job_id = job.nodes == 1 ? random_job_id() : fmt::format("run-{}", job.master_port);

  check_rank_variables();
  withhold_outer_pmi();
  Guard guard;  // forks, so it is constructed before any thread
  if (!settings.secret_file.empty()) use_secret_file(settings.secret_file);
  base::Descriptor secret;
  if (settings.secure) secret = create_secret();
  plan.inherited = secret.get();
  Signals signals;  // blocks signals in the store's threads as well
  if (settings.torch) job.torch_port = choose_torch_port(job);
  return run_job(job, plan, signals, guard);
}

}  // namespace

CLI::App* add_run(CLI::App& app, const std::vector<std::string>& program, int& exit_code) {
  auto settings = std::make_shared<RunSettings>();
  Job& job = settings->job;
  CLI::App* command = app.add_subcommand("run", "Start a program as the ranks of one job");
  command->formatter(std::make_shared<RunHelp>());
  command->footer(kRunFooter);
  command->add_option("-n,--ranks,--nproc", job.ranks_per_node, "Ranks to start on this node; required")
      ->required()
      ->check(CLI::Range(1, 65536))
      ->option_text("N");
  command->add_option("--backend", job.backend, "Backend of groups that name none, as in 'gloo?iface=eth0'")
      ->option_text("BACKEND");
  command->add_option("--nnodes", job.nodes, "Nodes of the job; each runs a launcher with N ranks")
      ->check(CLI::Range(1, 65536))
      ->option_text("M (1)");
  command->add_option("--node-rank", job.node_rank, "Number of this node, from 0")
      ->check(CLI::Range(0, 65535))
      ->option_text("R (0)");
  CLI::Option* address =
      command->add_option("--master-addr", job.master_addr, "Address at which node 0 serves the store")
          ->option_text("HOST (127.0.0.1)");
  command->add_option("--master-port", job.master_port, "Port of the store; required with several nodes")
      ->check(CLI::Range(1, 65535))
      ->option_text("PORT");
  command
      ->add_option("--job-id", job.job_id,
                   "Id that distinguishes jobs on the same port; the same on all nodes. Default: random, or run-PORT "
                   "with several nodes")
      ->option_text("ID");
  CLI::Option* file = command
                          ->add_option("--secret-file", settings->secret_file,
                                       "File (mode 0600) with the secret of the job; the same on all nodes")
                          ->option_text("FILE");
  command->add_flag("--secure", settings->secure, "Create a secret for this job; one node only")->excludes(file);
  command->add_option("--timeout", settings->timeout, "End the job after this time")
      ->check(CLI::Range(0.001, 1e9))
      ->option_text("SECONDS");
  command->add_option("--grace", settings->grace, "Time between a signal that ends the ranks and SIGKILL")
      ->check(CLI::Range(0.0, 1e9))
      ->option_text("SECONDS (5)");
  command->add_flag("--keep-going", settings->keep_going, "Do not end the other ranks if one fails");
  command->add_flag("--torch", settings->torch,
                    "Leave MASTER_PORT to the store of torch.distributed: a free port, or with several nodes the port "
                    "after --master-port");
  CLI::Option* pmix = command->add_flag(
      "--pmix", settings->pmix, "Let Open MPI start as one world in the ranks, as with --backend mpi; one node only");
  command
      ->add_flag("--no-pmi", settings->no_pmi,
                 "Do not let MPI start as one world in the ranks: each MPI starts alone in each")
      ->excludes(pmix);
  CLI::Option* tag = command->add_flag("--tag-output", settings->tag_output,
                                       "Prefix each line of output with its rank even if there is only one rank");
  command
      ->add_flag("--no-prefix", settings->no_prefix, "Do not prefix lines: ranks write to stdout and stderr directly")
      ->excludes(tag);
  command->callback([settings, address, &program, &exit_code] {
    validate(*settings, address->count() > 0);
    exit_code = run_job(*settings, program);
  });
  return command;
}

}  // namespace backplane::tool
