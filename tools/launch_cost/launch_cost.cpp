// SPDX-License-Identifier: Apache-2.0
//
// backplane-nccl-launch-cost [DEVICE]: how long the host takes to put an all_reduce of 4 bytes into a stream, over the
// backend nccl and by NCCL's own call, in one process with one rank, by turns. Prints one line; ends with 0, or with 2
// and a reason. The library is BACKPLANE_NCCL_LIBRARY's, else libnccl.so.2.
//
// NCCL's own call is what a program without Backplane would do on a communicator that does not block: the call, until
// it is launched, and an event to wait for.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "api.hpp"
#include "backplane/backplane.hpp"
#include "backplane/sdk/failure.hpp"

namespace {

using backplane::nccl::Api;
using backplane::nccl::check;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 41;
constexpr int kLaunches = 200;  // in a round; then the device catches up

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Microseconds per launch.
template <typename Launch>
double time_of(const Launch& launch) {
  const auto start = Clock::now();
  for (int i = 0; i < kLaunches; ++i) launch(i);
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kLaunches;
}

// NCCL's own.
class Direct {
 public:
  Direct(const Api& api, int device) : api_(api), events_(kLaunches) {
    check(api, api.cuda.set_device(device), "choosing the device");
    check(api, api.cuda.stream_create(&stream_, cudaStreamNonBlocking), "making a stream");
    for (cudaEvent_t& event : events_) check(api, api.cuda.event_create(&event, cudaEventDisableTiming), "an event");
    ncclUniqueId id;
    check(api, api.nccl.get_unique_id(&id), "making an id");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(api, api.nccl.comm_init_rank_config(&comm_, 1, id, 0, &config), "making a communicator");
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
      check(api_, api_.nccl.comm_get_async_error(comm_, &state), "asking for the state", comm_);
      check(api_, state, "NCCL reports", comm_);
    }
  }

  const Api& api_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::vector<cudaEvent_t> events_;
};

void measure(int device) {
  const Api& api = backplane::nccl::open_api("");
  backplane::nccl::count_devices(api);
  const Direct direct(api, device);
  backplane::GroupOptions options;
  options.backend = "nccl";
  options.store = backplane::Store::inproc();
  options.rank = 0;
  options.world_size = 1;
  options.device = device;
  auto group = backplane::ProcessGroup::create(options);
  auto memory = group.allocate<float>(1, backplane::Device::cuda(device));
  const backplane::Buffer buffer(memory.data(), 1, backplane::dtype_of<float>, backplane::Device::cuda(device));
  backplane::CallOptions call;
  call.async_op = true;
  call.stream = direct.stream();
  std::vector<backplane::Work> works(kLaunches);
  std::vector<double> own;
  std::vector<double> over;
  for (int round = 0; round < kRounds; ++round) {
    own.push_back(time_of([&direct, &memory](int i) { direct.launch(memory.data(), i); }));
    direct.synchronize();
    over.push_back(time_of([&group, &works, &buffer, &call](int i) {
      works[static_cast<size_t>(i)] = group.all_reduce(buffer, backplane::ReduceOp::kSum, call);
    }));
    for (backplane::Work& work : works) work.wait();
  }
  const double its_own = median(own);
  const double with = median(over);
  std::printf("launching all_reduce of 4 B: %.2f us by NCCL %s itself, %.2f us over backplane, %+.2f us each\n",
              its_own, backplane::nccl::nccl_version_text(api.nccl_version).c_str(), with, with - its_own);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    measure(argc > 1 ? std::atoi(argv[1]) : 0);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "backplane-nccl-launch-cost: %s\n", e.what());
    return 2;
  }
}
