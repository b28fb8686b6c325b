// SPDX-License-Identifier: Apache-2.0
//
// Several devices in one process: the _multigpu calls of the first torch.distributed.
//
//     std::vector<Buffer> gradients = {on_device_0, on_device_1};
//     backplane::all_reduce_multigpu(gradients);  // the sum over all devices of all ranks
//
// Each rank hands over as many buffers as the others, each on a device of its own. They are the ranks of a group of
// their own, in which buffer i of rank r is number r * n + i. It is made by the first call with these devices and kept
// until clear_group_cache; making it needs a group that takes host buffers, too (cpu:gloo,cuda:nccl).
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

#include "backplane/distributed.hpp"
#include "backplane/store.hpp"

namespace backplane {
namespace detail {

// The groups of one rank's devices.
struct DeviceGroups {
  std::optional<StoreServer> server;  // on rank 0
  std::vector<ProcessGroup> members;  // one per device
};

// Where rank 0's server is. The job's other ranks reach the host that they found rank 0 at.
struct Meeting {
  std::array<char, 256> host = {};
  int64_t port = 0;
};

inline Meeting agree_to_meet(ProcessGroup& group, int64_t devices, std::optional<StoreServer>& server) {
  std::array<int64_t, 2> bounds = {devices, -devices};
  group.all_reduce(bounds, ReduceOp::kMax);
  if (bounds[0] != -bounds[1]) {
    fail(Status::kInvalid, "the ranks hand over between " + std::to_string(-bounds[1]) + " and " +
                               std::to_string(bounds[0]) + " buffers; all need as many devices");
  }
  Meeting meeting;
  if (group.rank() == 0) {
    const char* const named = std::getenv("MASTER_ADDR");
    const std::string host = named == nullptr || *named == '\0' ? "127.0.0.1" : named;
    try {
      server.emplace(host);
      meeting.port = server->port();
    } catch (const Error&) {
      group.broadcast(as_buffer(meeting.port), 0);  // the others are told, too
      throw;
    }
    std::strncpy(meeting.host.data(), host.c_str(), meeting.host.size() - 1);
  }
  group.broadcast(as_buffer(meeting.port), 0);
  if (meeting.port == 0) fail(Status::kResource, "rank 0 cannot serve the store at which the devices meet");
  group.broadcast(meeting.host, 0);
  return meeting;
}

// Starts them all at once: each waits for the others.
inline DeviceGroups start_device_groups(ProcessGroup group, const std::vector<int>& devices) {
  DeviceGroups made;
  const int n = static_cast<int>(devices.size());
  const Meeting meeting = agree_to_meet(group, n, made.server);
  const std::string backend = group.backend(Device::cuda(devices.front()));
  std::vector<std::optional<ProcessGroup>> members(devices.size());
  std::vector<std::exception_ptr> failures(devices.size());
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    threads.emplace_back([&members, &failures, &devices, &meeting, &group, &backend, at, i, n] {
      try {
        GroupOptions options;
        options.backend = backend;
        options.store = Store::connect(meeting.host.data(), static_cast<uint16_t>(meeting.port));
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

inline std::shared_ptr<DeviceGroups> device_groups(const ProcessGroup& group, const std::vector<Buffer>& buffers) {
  if (buffers.empty()) fail(Status::kInvalid, "a _multigpu call needs at least one buffer");
  std::vector<int> devices;
  for (const Buffer& buffer : buffers) {
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

inline CallOptions started(CallOptions options) {
  options.async_op = true;
  return options;
}

}  // namespace detail

// All of these: collective, block until all buffers are done, and throw what the first one fails with. A rank calls
// them from one thread at a time. They always wait, whatever options.async_op says.

// Buffer `src_index` of rank `src` reaches all the others.
inline void broadcast_multigpu(const std::vector<Buffer>& buffers, int src, const OptionalGroup& group = {},
                               int src_index = 0, const CallOptions& options = {}) {
  const auto groups = detail::device_groups(detail::chosen(group), buffers);
  const int root = src * static_cast<int>(buffers.size()) + src_index;
  detail::on_each_device(*groups, [&](ProcessGroup& member, size_t i) {
    return member.broadcast(buffers[i], root, detail::started(options));
  });
}

// Each buffer ends with the same: all of them, of all ranks, reduced.
inline void all_reduce_multigpu(const std::vector<Buffer>& buffers, ReduceOp op = ReduceOp::kSum,
                                const OptionalGroup& group = {}, const CallOptions& options = {}) {
  const auto groups = detail::device_groups(detail::chosen(group), buffers);
  detail::on_each_device(*groups, [&](ProcessGroup& member, size_t i) {
    return member.all_reduce(buffers[i], op, detail::started(options));
  });
}

// Only buffer `dst_index` of rank `dst` is written.
inline void reduce_multigpu(const std::vector<Buffer>& buffers, int dst, ReduceOp op = ReduceOp::kSum,
                            const OptionalGroup& group = {}, int dst_index = 0, const CallOptions& options = {}) {
  const auto groups = detail::device_groups(detail::chosen(group), buffers);
  const int root = dst * static_cast<int>(buffers.size()) + dst_index;
  detail::on_each_device(*groups, [&](ProcessGroup& member, size_t i) {
    const Buffer out = member.rank() == root ? buffers[i] : Buffer();
    return member.reduce(buffers[i], out, root, op, detail::started(options));
  });
}

// outs[i], on the device of ins[i], gets the inputs of all: input j of rank r is block r * ins.size() + j.
inline void all_gather_multigpu(const std::vector<Buffer>& outs, const std::vector<Buffer>& ins,
                                const OptionalGroup& group = {}, const CallOptions& options = {}) {
  if (outs.size() != ins.size()) detail::fail(Status::kInvalid, "all_gather_multigpu: as many outputs as inputs");
  const auto groups = detail::device_groups(detail::chosen(group), ins);
  detail::on_each_device(*groups, [&](ProcessGroup& member, size_t i) {
    return member.all_gather(ins[i], outs[i], detail::started(options));
  });
}

// Ends the groups that _multigpu calls have made in this process; all ranks, when no call is under way. The next call
// makes them anew.
inline void clear_group_cache() {
  detail::DeviceGroupCache& cache = detail::device_group_cache();
  decltype(cache.groups) ended;  // outside of the lock, for that takes time
  {
    const std::lock_guard lock(cache.mutex);
    ended.swap(cache.groups);
  }
}

}  // namespace backplane
