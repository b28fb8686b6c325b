// SPDX-License-Identifier: Apache-2.0
//
// Starts the processes of one case: in its namespaces, with the servers through which MPI starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backplane/base/pmi_server.hpp"
#include "backplane/base/pmix_server.hpp"
#include "child_process.hpp"
#include "namespaces.hpp"
#include "supervisor.hpp"

namespace backplane::conformance {

class Launcher {
 public:
  Launcher(const Case& which, const Subject& subject, const RunSettings& settings, double busy_factor);

  // Enters the case's namespaces. Otherwise the reason why the case is skipped; empty: all is well.
  std::string enter_namespaces();
  // Starts ranks and extra processes. Throws std::runtime_error if one cannot be started.
  std::vector<ChildProcess> start(World& world);

  // The server of PMI has to be served when its descriptor is readable.
  int pmi_fd() const { return pmi_->fd(); }
  void serve_pmi() { pmi_->serve(); }
  void rank_ended(int32_t rank);

 private:
  void start_pmix();
  ChildProcess fork_child(World& world, const std::vector<int32_t>& members, bool is_extra);
  void offer_pmi(int32_t rank, int fd) const;
  [[noreturn]] void run_in_child(World& world, const std::vector<int32_t>& members, bool is_extra, int channel,
                                 int output);

  const Case& case_;
  const Subject& subject_;
  const RunSettings& settings_;
  const double busy_factor_;
  std::optional<Namespaces> namespaces_;
  std::optional<base::PmiServer> pmi_;    // empty in the ranks
  std::optional<base::PmixServer> pmix_;  // likewise; and where none is used
};

}  // namespace backplane::conformance
