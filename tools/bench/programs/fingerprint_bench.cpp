// SPDX-License-Identifier: Apache-2.0
//
// The cost of comparing collectives (BACKPLANE_FINGERPRINT) and of the flight recorder: all_reduces of 64 KiB over gloo
// between two processes per mode. One pair works at a time. Two pairs run with "off"; their difference is the noise.
// The processor time of the calling thread and of the core's threads, one of which compares, shows what elapsed time
// hides.
#include <benchmark/benchmark.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backplane/backplane.hpp"
#include "group/recorder.hpp"
#include "support/environment.hpp"

namespace backplane::bench {
namespace {

constexpr size_t kElements = 16384;  // of 4 bytes
constexpr uint32_t kBatch = 50;
constexpr auto kTimeout = std::chrono::seconds(60);

void two_clock_readings(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(core::monotonic_ns());
    benchmark::DoNotOptimize(core::monotonic_ns());
  }
}
BENCHMARK(two_clock_readings);

void record_operation(benchmark::State& state) {
  static core::Recorder recorder;
  bp_op op = {};
  op.kind = BP_ALL_REDUCE;
  op.dtype = BP_F32;
  uint64_t seq = 0;
  for (auto _ : state) recorder.finish(recorder.start(op, ++seq, 1, -1), BP_OK);
}
BENCHMARK(record_operation);

int64_t cpu_of_caller() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// The processor time of the threads that the core has started, which are named bp-*.
int64_t cpu_of_core() {
  int64_t sum = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    int64_t ns = 0;
    std::ifstream(thread.path() / "comm") >> name;
    std::ifstream(thread.path() / "schedstat") >> ns;
    if (name.starts_with("bp-")) sum += ns;
  }
  return sum;
}

// The cost of a batch on one rank, in nanoseconds.
struct Spent {
  int64_t time = 0;
  int64_t caller = 0;
  int64_t core = 0;
};

// One rank: performs the requested number of all_reduces and replies with their cost, until the socket is closed.
void work(int rank, const std::string& store, int socket) {
  GroupOptions options;
  options.backend = "gloo";
  options.store = Store::file(store);
  options.rank = rank;
  options.world_size = 2;
  options.timeout = kTimeout;
  ProcessGroup group = ProcessGroup::create(options);
  std::vector<float> data(kElements, 1);
  uint32_t count = 0;
  while (::read(socket, &count, sizeof count) == sizeof count) {
    group.barrier();
    const int64_t core = cpu_of_core();
    const int64_t caller = cpu_of_caller();
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < count; ++i) group.all_reduce(data, ReduceOp::kMax);
    Spent spent;
    spent.time = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
    spent.caller = cpu_of_caller() - caller;
    spent.core = cpu_of_core() - core;
    if (data.back() != 1 || ::write(socket, &spent, sizeof spent) != sizeof spent) return;
  }
}

// Two processes in one mode.
class Pair {
 public:
  Pair(const std::string& name, const std::string& mode, const std::string& directory) : name_(name) {
    const test::ScopedVariable variable("BACKPLANE_FINGERPRINT", mode);
    for (int rank = 0; rank < 2; ++rank) start(rank, directory + "/" + name);
  }
  ~Pair() {
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      ::close(sockets_[rank]);
      ::waitpid(pids_[rank], nullptr, 0);
    }
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  const std::string& name() const { return name_; }

  // The maximum of each cost over both ranks; none if a rank failed.
  std::optional<Spent> batch(uint32_t count) const {
    for (const int socket : sockets_) {
      if (::write(socket, &count, sizeof count) != sizeof count) return std::nullopt;
    }
    Spent most;
    for (const int socket : sockets_) {
      Spent spent;
      if (::read(socket, &spent, sizeof spent) != sizeof spent) return std::nullopt;
      most = {std::max(most.time, spent.time), std::max(most.caller, spent.caller), std::max(most.core, spent.core)};
    }
    return most;
  }

 private:
  void start(int rank, const std::string& store) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) throw std::runtime_error("no socket");
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("no process");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);                       // ends with the parent
      ::close_range(3, static_cast<unsigned>(ends[1]) - 1, 0);  // inherited ends of sockets
      run(rank, store, ends[1]);
    }
    ::close(ends[1]);
    pids_.push_back(pid);
    sockets_.push_back(ends[0]);
  }

  [[noreturn]] static void run(int rank, const std::string& store, int socket) {
    int code = 0;
    try {
      work(rank, store, socket);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      code = 1;
    }
    std::_Exit(code);
  }

  const std::string name_;
  std::vector<pid_t> pids_;
  std::vector<int> sockets_;
};

void all_reduce_64k(benchmark::State& state, const Pair& pair) {
  int64_t caller = 0;
  for (auto _ : state) {
    const std::optional<Spent> spent = pair.batch(kBatch);
    if (!spent) {
      state.SkipWithError("a rank failed");
      return;
    }
    caller += spent->caller;
    state.SetIterationTime(static_cast<double>(spent->time) * 1e-9 / kBatch);
  }
  state.counters["caller_cpu_ns"] = static_cast<double>(caller) / kBatch / static_cast<double>(state.iterations());
}

// Runs all_reduces for about kLong, because the core compares once a second.
void comparing(benchmark::State& state, const Pair& pair) {
  constexpr int64_t kLong = 3'000'000'000;
  for (auto _ : state) {
    const std::optional<Spent> trial = pair.batch(kBatch);
    const auto count = trial ? static_cast<uint32_t>(kLong / std::max<int64_t>(1, trial->time / kBatch)) : 0;
    const std::optional<Spent> spent = trial ? pair.batch(count) : trial;
    if (!spent) {
      state.SkipWithError("a rank failed");
      return;
    }
    state.SetIterationTime(static_cast<double>(spent->time) * 1e-9);
    state.counters["core_cpu_ppm"] = static_cast<double>(spent->core) * 1e6 / static_cast<double>(spent->time);
    state.counters["core_cpu_ns_per_op"] = static_cast<double>(spent->core) / count;
  }
}

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  const test::ScopedDirectory directory;
  std::vector<std::unique_ptr<Pair>> pairs;  // before any thread is started
  const std::array<std::pair<const char*, const char*>, 4> modes = {
      {{"off", "off"}, {"sampled", "sampled"}, {"off_again", "off"}, {"always", "always"}}};
  for (const auto& [name, mode] : modes) {
    pairs.push_back(std::make_unique<Pair>(name, mode, directory.path().string()));
  }
  for (const auto& pair : pairs) {
    const Pair& one = *pair;
    benchmark::RegisterBenchmark(("all_reduce_64k/fingerprint_" + one.name()).c_str(), [&one](benchmark::State& state) {
      all_reduce_64k(state, one);
    })->UseManualTime();
    benchmark::RegisterBenchmark(("comparing/fingerprint_" + one.name()).c_str(),
                                 [&one](benchmark::State& state) { comparing(state, one); })
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kSecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) { return backplane::bench::main(argc, argv); }
