// SPDX-License-Identifier: Apache-2.0
#include "staging.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "backplane/sdk/failure.hpp"
#include "backplane/sdk/worker.hpp"

namespace backplane::tensorpipe {
namespace {

// Runs `body`, then calls next(failure or null).
template <typename Body>
void run_then(const Body& body, const std::function<void(const sdk::Failure*)>& next) {
  std::optional<sdk::Failure> failure;
  try {
    body();
  } catch (const sdk::Failure& e) {
    failure.emplace(e);
  } catch (const std::exception& e) {
    failure.emplace(BP_RESOURCE, std::string("no host memory to stage a device buffer: ") + e.what());
  }
  next(failure ? &*failure : nullptr);
}

}  // namespace

Staging::Staging(const std::vector<WorkerDevices>& workers, int32_t rank, std::shared_ptr<sdk::BlockPool> memory,
                 const std::atomic<bool>& is_stopped)
    : name_(workers[static_cast<size_t>(rank)].name), memory_(std::move(memory)), is_stopped_(is_stopped) {
  const WorkerDevices& self = workers[static_cast<size_t>(rank)];
  bool any = false;
  for (const WorkerDevices& other : workers) {
    DeviceRoute route = {other.name, device_map_between(self, other), {}};
    for (const auto& [there, here] : device_map_between(other, self)) route.in.insert(here);
    any = any || !route.out.empty() || !route.in.empty();
    routes_.push_back(std::move(route));
  }
  if (!any) return;
  copiers_ = std::make_unique<Copiers>();
  try {
    copiers_->out.add([] {});
    copiers_->in.add([] {});
  } catch (const std::system_error& error) {
    throw sdk::cannot_start_thread(error);
  }
}

bool Staging::needs_staging(const sdk::RpcMessage& message, int32_t to) const {
  bool any = false;
  for (const bp_buffer& buffer : message.buffers()) {
    if (buffer.memory != BP_CUDA) continue;
    any = true;
    const DeviceRoute& route = routes_[static_cast<size_t>(to)];
    if (route.out.contains(buffer.device)) continue;
    const std::string device = std::to_string(buffer.device);
    throw sdk::Failure(BP_INVALID, "CUDA device " + device + " of this worker ('" + name_ +
                                       "') is not mapped for worker '" + route.name + "'; add it to device_maps, as " +
                                       route.name + ":" + device + "=0, or copy the buffer to the host");
  }
  return any;
}

Staged Staging::staged(const sdk::RpcMessage& message, const DeviceMap& map) {
  Staged made;
  made.buffers = message.buffers();
  for (bp_buffer& buffer : made.buffers) {
    const bool is_here = buffer.memory != BP_CUDA;
    made.devices.push_back(is_here ? kOnHost : map.at(buffer.device));
    if (is_here) continue;
    void* copy = nullptr;
    if (buffer.count > 0) {
      copy = made.memory.emplace_back(memory_->take(buffer.count)).get();
      devices_.get(buffer.device)->copy_to_host(copy, buffer.data, buffer.count, is_stopped_);
    }
    buffer = {copy, buffer.count, BP_HOST, 0};
  }
  return made;
}

void Staging::copy_to_host_async(std::shared_ptr<Outgoing> message, int32_t to,
                                 std::function<void(const sdk::Failure* failure)> next) {
  copiers_->out.add([this, message = std::move(message), to, next = std::move(next)] {
    const DeviceMap& map = routes_[static_cast<size_t>(to)].out;
    run_then([this, &message, &map] { message->staged = std::make_unique<Staged>(staged(message->message, map)); },
             next);
  });
}

void Staging::place(IncomingMessage& received, std::function<void(const sdk::Failure* failure)> next) {
  copiers_->in.add([this, &received, next = std::move(next)] {
    const auto to_device = [this](int device, const void* data, uint64_t bytes) {
      const std::shared_ptr<CudaDevice> it = devices_.get(device);
      std::shared_ptr<void> memory = it->allocate(bytes);
      it->copy_from_host(memory.get(), data, bytes, is_stopped_);
      return memory;
    };
    run_then([&received, &to_device] { received.place(to_device); }, next);
  });
}

void Staging::stop() {
  if (!copiers_) return;
  copiers_->out.stop();
  copiers_->in.stop();
}

}  // namespace backplane::tensorpipe
