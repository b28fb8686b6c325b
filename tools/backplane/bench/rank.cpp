// SPDX-License-Identifier: Apache-2.0
#include "bench/rank.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "backplane/process_group.hpp"
#include "backplane/store.hpp"
#include "common/failure.hpp"
#include "measure/measure.hpp"
#include "measure/pin.hpp"

namespace backplane::tool {
namespace {

constexpr std::chrono::seconds kOperationTimeout{60};  // for one operation

class GroupTarget final : public bench::Target {
 public:
  // registered: the group allocates the buffers; on a device it always does.
  GroupTarget(ProcessGroup group, bool registered, Device device)
      : group_(std::move(group)), registered_(registered), device_(device) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.world_size(); }
  bool offers(bench::Test) const override { return true; }
  bool allocates_buffers() const override { return registered_ || !has_host_memory(); }
  bool has_host_memory() const override { return device_.memory == BP_HOST; }
  std::shared_ptr<void> allocate(uint64_t bytes) override {
    auto memory = std::make_shared<Memory<std::byte>>(group_.allocate<std::byte>(bytes, device_));
    return {memory, memory->data()};
  }
  void run(const bench::Step& step) override { perform(step, {}); }
  void start(const bench::Step& step) override { works_.push_back(perform(step, {.async_op = true})); }
  void finish() override {
    for (Work& work : works_) work.wait();
    works_.clear();
  }

  // Makes the backend start the threads that its first asynchronous collective, send and receive need. Collective.
  void start_threads() {
    if (!has_host_memory()) return;
    float sum = 0;
    float sent = 0;
    float received = 0;
    const CallOptions async = {.async_op = true};
    works_.push_back(group_.all_reduce(as_buffer(sum), ReduceOp::kSum, async));
    if (size() > 1) {
      works_.push_back(group_.recv(as_buffer(received), (rank() + size() - 1) % size(), 0, async));
      works_.push_back(group_.send(as_buffer(sent), (rank() + 1) % size(), 0, async));
    }
    finish();
  }

 private:
  Work perform(const bench::Step& step, const CallOptions& options) {
    const auto size = static_cast<uint64_t>(group_.world_size());
    const Device device = step.is_control ? Device::cpu() : device_;
    const auto in = [&](uint64_t blocks) { return Buffer(step.in, step.count * blocks, DType::kF32, device); };
    const auto out = [&](uint64_t blocks) { return Buffer(step.out, step.count * blocks, DType::kF32, device); };
    const bool at_root = group_.rank() == step.root;
    switch (step.op) {
      case bench::Op::kBarrier:
        return group_.barrier(options);
      case bench::Op::kBroadcast:
        return group_.broadcast(in(1), step.root, options);
      case bench::Op::kReduce:
        return group_.reduce(in(1), at_root ? out(1) : Buffer(), step.root, ReduceOp::kSum, options);
      case bench::Op::kAllReduce:
        return group_.all_reduce(in(1), ReduceOp::kSum, options);
      case bench::Op::kGather:
        return group_.gather(in(1), at_root ? out(size) : Buffer(), step.root, options);
      case bench::Op::kScatter:
        return group_.scatter(at_root ? in(size) : Buffer(), out(1), step.root, options);
      case bench::Op::kAllGather:
        return group_.all_gather(in(1), out(size), options);
      case bench::Op::kReduceScatter:
        return group_.reduce_scatter(in(size), out(1), ReduceOp::kSum, options);
      case bench::Op::kAllToAll:
        return group_.all_to_all(in(size), out(size), options);
      case bench::Op::kSend:
        return group_.send(in(1), step.peer, 0, options);
      case bench::Op::kRecv:
        return group_.recv(out(1), step.peer, 0, options);
    }
    return {};
  }

  ProcessGroup group_;
  const bool registered_;
  const Device device_;
  std::vector<Work> works_;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr)
    throw Failure(kWrongUse, fmt::format("{} is not set; ranks are started by 'backplane bench'", name));
  return value;
}

void measure_as(int rank, int world_size, const Store& store, const bench::Task& task,
                const std::vector<std::string>& backends) {
  std::vector<std::unique_ptr<GroupTarget>> owners;
  std::vector<bench::Target*> targets;
  for (const std::string& backend : backends) {
    GroupOptions options;
    options.backend = backend;
    options.rank = rank;
    options.world_size = world_size;
    options.store = store;
    options.name = fmt::format("bench{}", targets.size());
    options.timeout = kOperationTimeout;
    const Device device = task.devices > 0 ? Device::cuda(rank % task.devices) : Device::cpu();
    if (task.devices > 0) options.device = device.ordinal;
    const ProcessGroup group = ProcessGroup::create(options);
    for (int registered = 0; registered <= (task.registered ? 1 : 0); ++registered) {
      owners.push_back(std::make_unique<GroupTarget>(group, registered == 1, device));
      targets.push_back(owners.back().get());
    }
  }
  // Only this thread is pinned. A backend's threads start first, since they would inherit its core.
  if (task.pin) {
    for (const auto& owner : owners) owner->start_threads();
    bench::pin_thread(rank);
  }
  bench::measure(task, targets, bench::progress_line(task, fmt::format("{}", fmt::join(backends, ", "))));
}

}  // namespace

void measure_backends(const bench::Task& task, const std::vector<std::string>& backends, int threads) {
  if (threads == 0) {
    const Store store =
        Store::connect(variable("MASTER_ADDR"), static_cast<uint16_t>(std::stoi(variable("MASTER_PORT"))),
                       variable("BACKPLANE_JOB_ID"), kOperationTimeout);
    return measure_as(std::stoi(variable("RANK")), std::stoi(variable("WORLD_SIZE")), store, task, backends);
  }
  const Store store = Store::inproc();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < threads; ++rank) {
    ranks.emplace_back([rank, threads, &store, &task, &backends] {
      try {
        measure_as(rank, threads, store, task, backends);
      } catch (const std::exception& error) {
        // Ends all ranks, as the launcher does for processes.
        fmt::print(stderr, "backplane: rank {}: {}\n", rank, error.what());
        std::_Exit(kFailed);
      }
    });
  }
  for (std::thread& each : ranks) each.join();
}

}  // namespace backplane::tool
