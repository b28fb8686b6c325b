// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "backplane/base/host.hpp"
#include "child.hpp"

namespace backplane::conformance {

Launcher::Launcher(const Case& which, const Subject& subject, const RunSettings& settings, double busy_factor)
    : case_(which), subject_(subject), settings_(settings), busy_factor_(busy_factor) {}

std::string Launcher::enter_namespaces() {
  std::string why_not;
  namespaces_ = case_.own_network ? Namespaces::with_network(why_not) : Namespaces::with_shared_memory(why_not);
  return case_.own_network && !namespaces_ ? why_not : "";
}

std::vector<ChildProcess> Launcher::start(World& world) {
  pmi_.emplace("kvs", 1, settings_.ranks);
  if (!settings_.pmix_server.empty()) start_pmix();
  std::vector<int32_t> ranks(static_cast<size_t>(settings_.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<ChildProcess> children;
  if (settings_.one_process) {
    children.push_back(fork_child(world, ranks, false));
  } else {
    for (const int32_t rank : ranks) children.push_back(fork_child(world, {rank}, false));
  }
  for (int32_t i = 0; i < case_.extra_processes; ++i)
    children.push_back(fork_child(world, {settings_.ranks + i}, true));
  return children;
}

void Launcher::start_pmix() {
  const base::PmixServer::Job job = {base::PmixServer::random_name(), {base::host_name()}, 0, settings_.ranks};
  std::function<bool()> enter;
  if (namespaces_) enter = [this] { return namespaces_->join(); };  // the ranks reach it over loopback
  try {
    pmix_.emplace(settings_.pmix_server, job, enter);
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(fmt::format("cannot serve PMIx to it: {}", e.what()));
  }
}

ChildProcess Launcher::fork_child(World& world, const std::vector<int32_t>& members, bool is_extra) {
  base::Pipe channel = base::Pipe::open();
  base::Pipe output = base::Pipe::open();
  const base::Descriptor pmi = is_extra || members.size() > 1 ? base::Descriptor() : pmi_->connect(members.front());
  base::Subprocess process;
  if (channel && output) {
    process = base::Subprocess::fork([this, &world, &members, is_extra, &channel, &output, &pmi]() -> int {
      pmi_.reset();
      if (pmi) offer_pmi(members.front(), pmi.get());
      pmix_.reset();
      run_in_child(world, members, is_extra, channel.write.get(), output.write.get());
    });
  }
  if (!process) throw std::runtime_error(std::strerror(errno));
  for (const int32_t member : members) world.set_pid(member, process.pid());
  return {std::move(process), members, std::move(channel.read), std::move(output.read)};
}

// For MPI: its processes meet as those of mpiexec do.
void Launcher::offer_pmi(int32_t rank, int fd) const {
  ::setenv("PMI_FD", std::to_string(fd).c_str(), 1);
  ::setenv("PMI_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("PMI_SIZE", std::to_string(settings_.ranks).c_str(), 1);
  if (!pmix_) return;
  ::setenv("MPIR_CVAR_PMI_VERSION", "1", 0);  // MPICH 5 ends if it finds PMI-1 and PMIx and no choice
  for (const auto& [name, value] : pmix_->variables(rank)) ::setenv(name.c_str(), value.c_str(), 1);
}

void Launcher::rank_ended(int32_t rank) {
  if (pmix_ && rank < settings_.ranks) pmix_->rank_ended(rank);
}

void Launcher::run_in_child(World& world, const std::vector<int32_t>& members, bool is_extra, int channel, int output) {
  if (settings_.in_child) settings_.in_child(members.front());
  ChildSetup setup;
  setup.which = &case_;
  setup.members = members;
  setup.is_extra = is_extra;
  setup.output = output;
  setup.run.world = &world;
  setup.run.channel = Channel(channel);
  setup.run.seed = settings_.seed;
  setup.run.timeout_scale = settings_.timeout_scale;
  setup.run.busy_factor = busy_factor_;
  setup.run.path = subject_.path;
  setup.run.plugin = subject_.path.empty() ? subject_.entry : nullptr;
  setup.run.backend_id = subject_.backend;
  setup.run.options = subject_.options;
  setup.run.on_device = settings_.on_device;
  if (namespaces_ && !namespaces_->join()) {
    const std::string why_not =
        fmt::format("the case's own namespaces cannot be entered here: {}", std::strerror(errno));
    setup.run.channel.send({Record::kSkip, members.front(), {why_not}});
    _exit(0);
  }
  run_child(setup);
}

}  // namespace backplane::conformance
