// SPDX-License-Identifier: Apache-2.0
//
// Several devices in one process: the _multigpu calls of the first torch.distributed.
//
//     std::vector<Buffer> gradients = {on_device_0, on_device_1};
//     backplane::compat::all_reduce_multigpu(gradients);  // the sum over all devices of all ranks
//
// All ranks pass the same number of buffers, each on a CUDA device of its own. The buffers are the ranks of a separate
// group, in which buffer i of rank r has the number r * n + i. The first call with these devices creates the group, and
// it lasts until clear_group_cache. Creating it needs a group that also serves host buffers (cpu:gloo,cuda:nccl).
#pragma once

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backplane/compat/streams.hpp"
#include "backplane/distributed.hpp"
#include "backplane/store.hpp"

namespace backplane {
namespace detail {

// The memberships of one rank's devices.
struct DeviceGroups {
  std::optional<StoreServer> server;  // on rank 0
  std::vector<ProcessGroup> members;  // one per device
};

// The address of rank 0's store server. Its host is MASTER_ADDR, at which the ranks have reached rank 0.
struct StoreAddress {
  std::array<char, 256> host = {};
  int64_t port = 0;
};

inline StoreAddress agree_on_store(ProcessGroup& group, int64_t devices, std::optional<StoreServer>& server) {
  std::array<int64_t, 2> bounds = {devices, -devices};
  group.all_reduce(bounds, ReduceOp::kMax);
  if (bounds[0] != -bounds[1]) {
    fail(Status::kInvalid, "the ranks pass between " + std::to_string(-bounds[1]) + " and " +
                               std::to_string(bounds[0]) + " buffers; all must pass the same number");
  }
  StoreAddress address;
  if (group.rank() == 0) {
    const char* const named = std::getenv("MASTER_ADDR");
    const std::string host = named == nullptr || *named == '\0' ? "127.0.0.1" : named;
    try {
      server.emplace(host);
      address.port = server->port();
    } catch (const Error&) {
      group.broadcast(as_buffer(address.port), 0);  // the other ranks fail at port 0
      throw;
    }
    std::strncpy(address.host.data(), host.c_str(), address.host.size() - 1);
  }
  group.broadcast(as_buffer(address.port), 0);
  if (address.port == 0) fail(Status::kResource, "rank 0 cannot start the store server for the group of devices");
  group.broadcast(address.host, 0);
  return address;
}

// Starts them all at once: each waits for the others.
inline DeviceGroups start_device_groups(ProcessGroup group, const std::vector<int>& devices) {
  DeviceGroups made;
  const int n = static_cast<int>(devices.size());
  const StoreAddress address = agree_on_store(group, n, made.server);
  const std::string backend = group.backend(Device::cuda(devices.front()));
  std::vector<std::optional<ProcessGroup>> members(devices.size());
  std::vector<std::exception_ptr> failures(devices.size());
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    threads.emplace_back([&members, &failures, &devices, &address, &group, &backend, at, i, n] {
      try {
        GroupOptions options;
        options.backend = backend;
        options.store = Store::connect(address.host.data(), static_cast<uint16_t>(address.port));
        options.rank = group.rank() * n + i;
        options.world_size = group.world_size() * n;
        options.name = group.name() + "/devices";
        options.device = devices[at];
        members[at] = ProcessGroup::create(options);
      } catch (...) {
        failures[at] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  for (std::optional<ProcessGroup>& member : members) made.members.push_back(*std::move(member));
  return made;
}

struct DeviceGroupCache {
  std::mutex mutex;
  // By the name of the group, with this rank's number, and the devices.
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<DeviceGroups>> groups;
};

inline DeviceGroupCache& device_group_cache() {
  static auto* const cache = new DeviceGroupCache;  // other threads may use it while the process ends
  return *cache;
}

template <typename AnyBuffer>
std::shared_ptr<DeviceGroups> device_groups(const ProcessGroup& group, const std::vector<AnyBuffer>& buffers) {
  if (buffers.empty()) fail(Status::kInvalid, "a _multigpu call needs at least one buffer");
  std::vector<int> devices;
  for (const AnyBuffer& buffer : buffers) {
    if (buffer.device().memory != BP_CUDA) fail(Status::kInvalid, "a _multigpu call takes buffers on CUDA devices");
    devices.push_back(buffer.device().ordinal);
  }
  const std::pair key(group.name() + "#" + std::to_string(group.rank()), devices);
  DeviceGroupCache& cache = device_group_cache();
  {
    const std::lock_guard lock(cache.mutex);
    const auto found = cache.groups.find(key);
    if (found != cache.groups.end()) return found->second;
  }
  // Without the lock: other ranks may be threads of this process.
  auto made = std::make_shared<DeviceGroups>(start_device_groups(group, devices));
  const std::lock_guard lock(cache.mutex);
  cache.groups[key] = made;
  return made;
}

// Starts call(member, i) for each device, then waits for all.
template <typename Call>
void on_each_device(DeviceGroups& groups, const Call& call) {
  std::vector<Work> works;
  for (size_t i = 0; i < groups.members.size(); ++i) works.push_back(call(groups.members[i], i));
  for (Work& work : works) work.wait();
}

inline CallOptions started(CallOptions options, Device device) {
  options.async_op = true;
  if (options.stream == nullptr) options.stream = compat::registered_stream(device);
  return options;
}

}  // namespace detail

namespace compat {

// These are collective and block until all buffers are done, whatever options.async_op is. They throw the first
// failure. A rank must call them from one thread at a time.

// Copies buffer `src_index` of rank `src` to all other buffers.
inline void broadcast_multigpu(const std::vector<Buffer>& buffers, int src, const OptionalGroup& group = {},
                               int src_index = 0, const CallOptions& options = {}) {
  const auto groups = detail::device_groups(detail::chosen(group), buffers);
  const int root = src * static_cast<int>(buffers.size()) + src_index;
  detail::on_each_device(*groups, [&](ProcessGroup& member, size_t i) {
    return member.broadcast(buffers[i], root, detail::started(options, buffers[i].device()));
  });
}

// In place. Every buffer gets the reduction of all buffers of all ranks.
inline void all_reduce_multigpu(const std::vector<Buffer>& buffers, ReduceOp op = ReduceOp::kSum,
                                const OptionalGroup& group = {}, const CallOptions& options = {}) {
  const auto groups = detail::device_groups(detail::chosen(group), buffers);
  detail::on_each_device(*groups, [&](ProcessGroup& member, size_t i) {
    return member.all_reduce(buffers[i], op, detail::started(options, buffers[i].device()));
  });
}

// In place. Writes the result to buffer `dst_index` of rank `dst`; the other buffers are not changed.
inline void reduce_multigpu(const std::vector<Buffer>& buffers, int dst, ReduceOp op = ReduceOp::kSum,
                            const OptionalGroup& group = {}, int dst_index = 0, const CallOptions& options = {}) {
  const auto groups = detail::device_groups(detail::chosen(group), buffers);
  const int root = dst * static_cast<int>(buffers.size()) + dst_index;
  detail::on_each_device(*groups, [&](ProcessGroup& member, size_t i) {
    const Buffer out = member.rank() == root ? buffers[i] : Buffer();
    return member.reduce(buffers[i], out, root, op, detail::started(options, buffers[i].device()));
  });
}

// outs[i] must be on the device of ins[i]. Each output gets the inputs of all ranks: input j of rank r becomes block
// r * ins.size() + j.
inline void all_gather_multigpu(const std::vector<ConstBuffer>& ins, const std::vector<Buffer>& outs,
                                const OptionalGroup& group = {}, const CallOptions& options = {}) {
  if (outs.size() != ins.size()) detail::fail(Status::kInvalid, "all_gather_multigpu needs as many outputs as inputs");
  const auto groups = detail::device_groups(detail::chosen(group), ins);
  detail::on_each_device(*groups, [&](ProcessGroup& member, size_t i) {
    return member.all_gather(ins[i], outs[i], detail::started(options, ins[i].device()));
  });
}

// Ends the groups that _multigpu calls have created in this process. All ranks must call it, while no _multigpu call is
// running. The next _multigpu call creates them again.
inline void clear_group_cache() {
  detail::DeviceGroupCache& cache = detail::device_group_cache();
  decltype(cache.groups) ended;  // destroyed without the lock, because ending groups takes time
  {
    const std::lock_guard lock(cache.mutex);
    ended.swap(cache.groups);
  }
}

}  // namespace compat
}  // namespace backplane
