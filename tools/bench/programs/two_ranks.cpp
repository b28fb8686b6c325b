// SPDX-License-Identifier: Apache-2.0
#include "programs/two_ranks.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

#include "measure/pin.hpp"
#include "support/environment.hpp"

namespace backplane::bench {

int on_two_ranks(bool pin, const std::function<void(int, const std::filesystem::path&)>& body) {
  if (pin && allowed_cores() < 2) {
    std::fprintf(stderr, "--pin needs two cores, and this process may use only one; run it without --pin\n");
    return 1;
  }
  const test::ScopedDirectory place;
  const auto run = [pin, &body, &place](int rank) {
    try {
      if (pin) pin_thread(rank);
      body(rank, place.path());
      return 0;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      return 1;
    }
  };
  const pid_t other = fork();
  if (other < 0) throw std::runtime_error("fork failed");
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with the parent
    const int failed = run(1);
    std::fflush(stdout);
    _exit(failed);
  }
  const int failed = run(0);
  if (failed != 0) kill(other, SIGKILL);
  int status = 0;
  waitpid(other, &status, 0);
  return failed != 0 || status != 0 ? 1 : 0;
}

}  // namespace backplane::bench
