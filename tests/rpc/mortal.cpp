// SPDX-License-Identifier: Apache-2.0
//
// A worker of three, the last of which dies in the middle of a call. The others say how they saw it, and go on.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backplane/rpc.hpp"

using namespace backplane;  // NOLINT: a program
using Clock = std::chrono::steady_clock;

namespace {

int fail(const std::string& what) {
  std::printf("FAILED: %s\n", what.c_str());
  return 1;
}

// How long a call took to fail, which it must, naming the dead.
double seconds_to_fail(const rpc::Future<int>& call, Clock::time_point begun, std::string* problem) {
  try {
    call.wait();
    *problem = "a call to the dead worker succeeded";
  } catch (const Error& e) {
    const std::string text = e.what();
    if (e.status() != Status::kPeerLost || e.peer_rank() != 2 || text.find("worker 'mortal'") == std::string::npos ||
        text.find("is lost: its process ended") == std::string::npos) {
      *problem = text;
    }
  }
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

int survive(const rpc::Worker& worker) {
  const int other = 1 - worker.rank();
  // A value with the other survivor, which the dying one refers to as well.
  const auto value = worker.remote<int>(other, "two");
  worker.rpc_sync("mortal", "hold", value);
  const auto hanging = worker.rpc_async<int>("mortal", "hang");
  worker.all_gather(0);
  const auto begun = Clock::now();
  if (worker.rank() == 0) worker.rpc_async("mortal", "die");
  std::string problem;
  const double took = seconds_to_fail(hanging, begun, &problem);
  if (!problem.empty()) return fail(problem);
  if (took > 2) return fail("callers heard of the death after " + std::to_string(took) + " s");
  seconds_to_fail(worker.rpc_async<int>("mortal", "two"), Clock::now(), &problem);
  if (!problem.empty()) return fail(problem);
  for (int i = 0; i < 100; ++i) {
    if (worker.rpc_sync<int>(other, "two") != 2) return fail("a wrong answer");
  }
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  const int rank = std::stoi(std::getenv("RANK"));
  rpc::register_function("two", [] { return 2; });
  rpc::register_function("hang", [] {
    ::pause();
    return 0;
  });
  rpc::register_function("die", [] { ::raise(SIGKILL); });
  rpc::register_function("hold", [](const rpc::RRef<int>& ref) { new rpc::RRef<int>(ref); });
  rpc::RpcOptions options;
  options.backend = arguments[1];
  options.group = arguments[2];
  const rpc::Worker worker = rpc::init_rpc(rank == 2 ? "mortal" : "worker" + std::to_string(rank), options);
  if (rank == 2) {
    worker.all_gather(0);
    ::pause();
  }
  if (const int code = survive(worker); code != 0) return code;
  const auto leaks = worker.shutdown(true, std::chrono::seconds(20));
  if (!leaks.empty()) return fail(leaks.front());
  std::printf("rank %d went on\n", rank);
  return 0;
}
