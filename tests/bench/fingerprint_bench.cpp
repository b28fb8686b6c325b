// SPDX-License-Identifier: Apache-2.0
//
// What stays on in production: the flight recorder, and the comparison of collectives (BACKPLANE_FINGERPRINT), with it
// off in the same run. The latter: all_reduces of 64 KiB over gloo, between two processes for each mode. Pairs work
// only when the benchmark asks them to, one pair at a time. "off" is there twice: how far two pairs that do the same
// are apart is what the others' distance has to be compared with.
#include <benchmark/benchmark.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
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
constexpr auto kPatience = std::chrono::seconds(60);

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

// One rank: does as many all_reduces as it is asked for and answers with the nanoseconds they took, until the other end
// of the socket is closed.
void work(int rank, const std::string& store, int socket) {
  GroupOptions options;
  options.backend = "gloo";
  options.store = Store::file(store);
  options.rank = rank;
  options.world_size = 2;
  options.timeout = kPatience;
  ProcessGroup group = ProcessGroup::create(options);
  std::vector<float> data(kElements, 1);
  uint32_t count = 0;
  while (::read(socket, &count, sizeof count) == sizeof count) {
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < count; ++i) group.all_reduce(data, ReduceOp::kMax);
    const int64_t took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
    if (data.back() != 1 || ::write(socket, &took, sizeof took) != sizeof took) return;
  }
}

// Two processes that work in one mode.
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

  // Seconds per operation; negative: a rank failed.
  double batch() const {
    for (const int socket : sockets_) {
      if (::write(socket, &kBatch, sizeof kBatch) != sizeof kBatch) return -1;
    }
    int64_t longest = -1;
    for (const int socket : sockets_) {
      int64_t took = -1;
      if (::read(socket, &took, sizeof took) != sizeof took) return -1;
      longest = std::max(longest, took);
    }
    return static_cast<double>(longest) * 1e-9 / kBatch;
  }

 private:
  void start(int rank, const std::string& store) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) throw std::runtime_error("no socket");
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("no process");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);                       // no rank is left alone
      ::close_range(3, static_cast<unsigned>(ends[1]) - 1, 0);  // the parent's ends, this rank's and others'
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
  for (auto _ : state) {
    const double seconds = pair.batch();
    if (seconds < 0) {
      state.SkipWithError("a rank failed");
      return;
    }
    state.SetIterationTime(seconds);
  }
}

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  const test::ScopedDirectory directory;
  std::vector<std::unique_ptr<Pair>> pairs;  // before there is any thread
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
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) { return backplane::bench::main(argc, argv); }
