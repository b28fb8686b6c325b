// SPDX-License-Identifier: Apache-2.0
//
// backplane-nccl-launch-cost [DEVICE]: measures the host's cost of launching an all_reduce of 4 bytes, over the backend
// nccl and by NCCL's own call, alternately, in one process with one rank: time, and processor time of the launching
// thread. Then measures the device memory that groups leave behind. Prints a line for each. Exit codes: 0; 2 with the
// reason. The library is BACKPLANE_NCCL_LIBRARY, else libnccl.so.2.
//
// NCCL's own call stands for a program without Backplane that uses a non-blocking communicator: the call, polling until
// it is launched, and an event to wait for. The stream is blocked meanwhile, so that neither the device nor, in the
// tests, the test double's thread competes with the launching thread.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <vector>

#include "api.hpp"
#include "backplane/backplane.hpp"
#include "backplane/sdk/failure.hpp"

namespace {

using backplane::nccl::Api;
using backplane::nccl::check;

constexpr int kRounds = 101;
constexpr int kGroups = 100;
constexpr int kLaunches = 100;  // per round; a blocked stream has room for them

// The 10th percentile: other load on the processors only adds to the time.
double tenth_percentile(std::vector<double> values) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(values.size() / 10);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double microseconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Microseconds per launch of each round.
class Times {
 public:
  template <typename Launch>
  void add_round(const Launch& launch) {
    const double start = microseconds(CLOCK_MONOTONIC);
    const double start_of_thread = microseconds(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < kLaunches; ++i) launch(i);
    processor_.push_back((microseconds(CLOCK_THREAD_CPUTIME_ID) - start_of_thread) / kLaunches);
    wall_.push_back((microseconds(CLOCK_MONOTONIC) - start) / kLaunches);
  }
  double wall() const { return tenth_percentile(wall_); }
  double processor() const { return tenth_percentile(processor_); }

 private:
  std::vector<double> wall_;
  std::vector<double> processor_;
};

// Blocks a stream until open().
class Gate {
 public:
  Gate(const Api& api, cudaStream_t stream) : api_(api), stream_(stream) {
    const auto wait = [](void* gate) { static_cast<Gate*>(gate)->opened_.wait(); };
    check(api, api.cuda.launch_host_func(stream, wait, this), "blocking a stream");
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  // Opens it, if an error prevented that, and waits until the stream has passed it.
  ~Gate() {
    if (!is_open_) open();
    api_.cuda.stream_synchronize(stream_);
  }
  void open() {
    is_open_ = true;
    open_.set_value();
  }

 private:
  const Api& api_;
  const cudaStream_t stream_;
  bool is_open_ = false;
  std::promise<void> open_;
  const std::shared_future<void> opened_ = open_.get_future().share();
};

// Launches by NCCL's own call.
class Direct {
 public:
  Direct(const Api& api, int device) : api_(api), events_(kLaunches) {
    check(api, api.cuda.set_device(device), "setting the current device");
    check(api, api.cuda.stream_create(&stream_, cudaStreamNonBlocking), "creating a stream");
    for (cudaEvent_t& event : events_)
      check(api, api.cuda.event_create(&event, cudaEventDisableTiming), "creating an event");
    ncclUniqueId id;
    check(api, api.nccl.get_unique_id(&id), "creating an id");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(api, api.nccl.comm_init_rank_config(&comm_, 1, id, 0, &config), "creating a communicator");
    await();
  }
  ~Direct() {
    api_.nccl.comm_abort(comm_);
    for (const cudaEvent_t event : events_) api_.cuda.event_destroy(event);
    api_.cuda.stream_destroy(stream_);
  }
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;

  cudaStream_t stream() const { return stream_; }
  void launch(float* data, int number) const {
    check(api_, api_.nccl.all_reduce(data, data, 1, ncclFloat32, ncclSum, comm_, stream_), "all_reduce", comm_);
    await();
    check(api_, api_.cuda.event_record(events_[static_cast<size_t>(number)], stream_), "recording an event");
  }
  void synchronize() const { check(api_, api_.cuda.stream_synchronize(stream_), "waiting for the stream"); }

 private:
  void await() const {
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
      check(api_, api_.nccl.comm_get_async_error(comm_, &state), "getting the state", comm_);
      check(api_, state, "NCCL reports", comm_);
    }
  }

  const Api& api_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::vector<cudaEvent_t> events_;
};

backplane::ProcessGroup group_of_one(int device) {
  backplane::GroupOptions options;
  options.backend = "nccl";
  options.store = backplane::Store::inproc();
  options.rank = 0;
  options.world_size = 1;
  options.device = device;
  return backplane::ProcessGroup::create(options);
}

void measure_launches(const Api& api, int device) {
  const Direct direct(api, device);
  auto group = group_of_one(device);
  auto memory = group.allocate<float>(1, backplane::Device::cuda(device));
  const backplane::Buffer buffer(memory.data(), 1, backplane::dtype_of<float>, backplane::Device::cuda(device));
  backplane::CallOptions call;
  call.async_op = true;
  call.stream = direct.stream();
  std::vector<backplane::Work> works(kLaunches);
  // The first launches allocate and connect. They must not meet a blocked stream.
  direct.launch(memory.data(), 0);
  direct.synchronize();
  group.all_reduce(buffer, backplane::ReduceOp::kSum, call).wait();
  Times own;
  Times over;
  for (int round = 0; round < kRounds; ++round) {
    Gate first(api, direct.stream());
    own.add_round([&direct, &memory](int i) { direct.launch(memory.data(), i); });
    first.open();
    direct.synchronize();
    Gate second(api, direct.stream());
    over.add_round([&group, &works, &buffer, &call](int i) {
      works[static_cast<size_t>(i)] = group.all_reduce(buffer, backplane::ReduceOp::kSum, call);
    });
    second.open();
    for (backplane::Work& work : works) work.wait();
    direct.synchronize();
  }
  std::printf(
      "launching all_reduce of 4 B: %.2f us by NCCL %s itself, %.2f us over backplane, %+.2f us each; of the processor "
      "%.2f and %.2f us, %+.2f us\n",
      own.wall(), backplane::nccl::nccl_version_text(api.nccl_version).c_str(), over.wall(), over.wall() - own.wall(),
      own.processor(), over.processor(), over.processor() - own.processor());
  std::fflush(stdout);  // the line counts even if the rest fails
}

// Device memory that groups leave behind. The first group may leave what NCCL and CUDA allocate per process.
void measure_memory(const Api& api, int device) {
  check(api, api.cuda.set_device(device), "setting the current device");
  const auto use_groups = [&api, device](int count) {
    for (int i = 0; i < count; ++i) {
      auto group = group_of_one(device);
      auto memory = group.allocate<float>(1 << 20, backplane::Device::cuda(device));
      group.all_reduce(
          backplane::Buffer(memory.data(), 1, backplane::dtype_of<float>, backplane::Device::cuda(device)));
    }
    size_t free = 0;
    size_t total = 0;
    check(api, api.cuda.mem_get_info(&free, &total), "getting the free memory of the device");
    return static_cast<long long>(free);
  };
  const long long before = use_groups(1);
  const long long after = use_groups(kGroups);
  std::printf("%d groups made and ended: %lld bytes of device memory more in use\n", kGroups, before - after);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int device = argc > 1 ? std::atoi(argv[1]) : 0;
    const Api& api = backplane::nccl::open_api("");
    backplane::nccl::count_devices(api);
    if (api.cuda.launch_host_func == nullptr || api.cuda.mem_get_info == nullptr) {
      throw backplane::sdk::Failure(BP_UNSUPPORTED, api.library + "'s CUDA lacks cudaLaunchHostFunc or cudaMemGetInfo");
    }
    measure_launches(api, device);
    measure_memory(api, device);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "backplane-nccl-launch-cost: %s\n", e.what());
    return 2;
  }
}
