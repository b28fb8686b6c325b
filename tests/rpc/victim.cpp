// SPDX-License-Identifier: Apache-2.0
//
// One of three workers. Rank 2 is killed during a call; the others check its errors and continue. With "master", rank 0
// is the master and rank 2 is killed by a command. With "masterless", the master is killed and the workers end.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "backplane/compat/master_worker.hpp"
#include "backplane/rpc.hpp"

using namespace backplane;  // NOLINT: a program
using Clock = std::chrono::steady_clock;

namespace {

constexpr double kFailTime = 20;  // seconds, on a busy machine: far below the timeout of the calls

int fail(const std::string& what) {
  std::printf("FAILED: %s\n", what.c_str());
  return 1;
}

// The time until a call fails. The error must name the dead worker.
double seconds_to_fail(const rpc::Future<int>& call, Clock::time_point begun, std::string* problem) {
  try {
    call.wait();
    *problem = "a call to the dead worker succeeded";
  } catch (const Error& e) {
    const std::string text = e.what();
    if (e.status() != Status::kPeerLost || e.peer_rank() != 2 || text.find("worker 'victim'") == std::string::npos ||
        text.find("is lost: its process ended") == std::string::npos) {
      *problem = text;
    }
  }
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

std::promise<void> gathered;  // all_gather has ended

int survive(const rpc::Worker& worker) {
  const int other = 1 - worker.rank();
  // A value at the other survivor, with a reference held by the dying worker.
  const auto value = worker.remote<int>(other, "two");
  worker.rpc_sync("victim", "hold", value);
  const auto hanging = worker.rpc_async<int>("victim", "hang");
  worker.all_gather(0);
  gathered.set_value();
  const auto begun = Clock::now();
  if (worker.rank() == 0) {
    worker.rpc_sync(other, "wait for all_gather");  // otherwise the death could fail its all_gather
    worker.rpc_async("victim", "die");
  }
  std::string problem;
  const double took = seconds_to_fail(hanging, begun, &problem);
  if (!problem.empty()) return fail(problem);
  if (took > kFailTime) return fail("the calls failed after " + std::to_string(took) + " s");
  seconds_to_fail(worker.rpc_async<int>("victim", "two"), Clock::now(), &problem);
  if (!problem.empty()) return fail(problem);
  for (int i = 0; i < 100; ++i) {
    if (worker.rpc_sync<int>(other, "two") != 2) return fail("a wrong answer");
  }
  return 0;
}

// Returns "" if the command fails with an error that names worker 2.
std::string problem_of(const rpc::Future<void>& command) {
  try {
    command.wait();
  } catch (const Error& e) {
    const std::string text = e.what();
    const bool named = e.status() == Status::kPeerLost && text.find("rank 2 (") != std::string::npos &&
                       text.find("is lost: its process ended") != std::string::npos;
    return named ? "" : text;
  }
  return "a command that needs the dead worker succeeded";
}

int drive(const GroupOptions& options, const std::string& agent) {
  compat::register_command("sum", [](compat::Distributed<float> x) {
    float sum = 0;
    for (const float value : x.local()) sum += value;
    return sum;
  });
  compat::register_command("die", [] { ::raise(SIGKILL); });
  std::optional<compat::Master> master = compat::init_master_worker(options, agent);
  if (!master) return 0;
  const auto x = master->make<float>(10, 1.0F);
  if (master->ask<float>("sum", x) != std::vector<float>{10, 10}) return fail("a wrong sum");
  const auto begun = Clock::now();
  std::string problem = problem_of(master->run_on(2, "die"));
  if (!problem.empty()) return fail(problem);
  if (Clock::now() - begun > std::chrono::duration<double>(kFailTime)) return fail("the command failed too late");
  problem = problem_of(master->run_on(2, "die"));
  if (!problem.empty()) return fail(problem);
  // Worker 1 keeps its buffers and still works, except for operations that need both.
  const auto ends = master->all_reduce(x);
  for (const auto& end : ends) {
    problem = problem_of(end);
    if (!problem.empty()) return fail(problem);
  }
  if (master->run_on<float>(1, "sum", x).wait() != 10) return fail("a wrong sum after the death");
  master->shutdown();
  return 0;
}

// The master is killed while each worker runs a command that calls it.
int outlive(const GroupOptions& options, const std::string& agent) {
  rpc::register_function("die at the second call", [] {
    static std::atomic<int> calls = 0;
    if (++calls == 2) ::raise(SIGKILL);
    ::pause();
  });
  compat::register_command("call the master", [] { rpc::rpc_sync({0, kNoTimeout}, "die at the second call"); });
  try {
    std::optional<compat::Master> master = compat::init_master_worker(options, agent);
    if (!master) return fail("the master was reported as ended");
    for (const auto& end : master->run("call the master")) end.wait();
    return fail("a call to the dead master succeeded");
  } catch (const Error& e) {
    const std::string text = e.what();
    const bool named = e.status() == Status::kPeerLost && text.find("worker 'master' (rank 0)") != std::string::npos &&
                       text.find("is lost: its process ended") != std::string::npos;
    if (!named || is_initialized()) return fail(text);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const int rank = std::stoi(std::getenv("RANK"));
  if (count > 3) {
    GroupOptions options;
    options.backend = arguments[2];
    return std::string(arguments[3]) == "master" ? drive(options, arguments[1]) : outlive(options, arguments[1]);
  }
  rpc::register_function("two", [] { return 2; });
  rpc::register_function("hang", [] {
    ::pause();
    return 0;
  });
  rpc::register_function("die", [] { ::raise(SIGKILL); });
  rpc::register_function("wait for all_gather", [] { gathered.get_future().wait(); });
  rpc::register_function("hold", [](const rpc::RRef<int>& ref) { new rpc::RRef<int>(ref); });
  rpc::RpcOptions options;
  options.backend = arguments[1];
  options.group = arguments[2];
  const rpc::Worker worker = rpc::init_rpc(rank == 2 ? "victim" : "worker" + std::to_string(rank), options);
  if (rank == 2) {
    worker.all_gather(0);
    ::pause();
  }
  if (const int code = survive(worker); code != 0) return code;
  const auto leaks = worker.shutdown(true, std::chrono::seconds(20));
  if (!leaks.empty()) return fail(leaks.front());
  std::printf("rank %d continued\n", rank);
  return 0;
}
