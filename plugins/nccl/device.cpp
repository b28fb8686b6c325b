// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "backplane/sdk/failure.hpp"

namespace backplane::nccl {
namespace {

// Whether [part, part + bytes) lies in [whole, whole + whole_bytes).
bool lies_within(const std::byte* part, uint64_t bytes, const std::byte* whole, uint64_t whole_bytes) {
  return bytes > 0 && part >= whole && part + bytes <= whole + whole_bytes;
}

}  // namespace

OnDevice::OnDevice(const Api& api, int device) : api_(api) {
  check(api, api.cuda.get_device(&previous_), "getting the current device");
  if (previous_ == device) return;
  check(api, api.cuda.set_device(device), "setting the current device");
  changed_ = true;
}

OnDevice::~OnDevice() {
  if (changed_) api_.cuda.set_device(previous_);
}

sdk::Poller::Progress on_device(const Api& api, int device, sdk::Poller::Progress progress) {
  return [&api, device, progress = std::move(progress), is_on_device = false](sdk::Poller::Sleep& sleep) mutable {
    if (!std::exchange(is_on_device, true)) check(api, api.cuda.set_device(device), "setting the current device");
    return progress(sleep);
  };
}

Stream::Stream(const Api& api, int device) : api_(api), device_(device) {
  const OnDevice here(api, device);
  check(api, api.cuda.stream_create(&stream_, cudaStreamNonBlocking), "creating a stream");
}

Stream::~Stream() {
  try {
    const OnDevice here(api_, device_);
    api_.cuda.stream_destroy(stream_);
  } catch (const sdk::Failure&) {
    // The device has failed; the stream no longer exists.
  }
}

bool Stream::is_idle(Pool& pool, Event& last) const noexcept {
  try {
    const OnDevice here(api_, device_);
    if (!last) last = Event(pool, stream_);
    return last.passed();
  } catch (const sdk::Failure&) {
    return true;  // the device has failed and executes nothing
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Pool::~Pool() {
  try {
    const OnDevice here(api_, device_);
    for (const cudaEvent_t event : idle_events_) api_.cuda.event_destroy(event);
    for (const auto& [key, data] : idle_) {
      if (key.first == MemoryKind::kHost) {
        api_.cuda.free_host(data);
      } else {
        api_.cuda.free(data);
      }
    }
  } catch (const sdk::Failure&) {
    // The device has failed; its memory no longer exists.
  }
}

Pool::Blocks::node_type Pool::take(MemoryKind kind, uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = idle_.find({kind, bytes});
    if (found != idle_.end()) return idle_.extract(found);
  }
  const OnDevice here(api_, device_);
  Blocks allocated;
  void*& data = allocated.emplace(std::pair(kind, bytes), nullptr)->second;
  if (kind == MemoryKind::kHost) {
    check(api_, api_.cuda.malloc_host(&data, bytes), "allocating pinned memory to stage a buffer");
  } else {
    check(api_, api_.cuda.malloc(&data, bytes), "allocating device memory to stage a buffer");
  }
  return allocated.extract(allocated.begin());
}

void Pool::give_back(Blocks::node_type block) noexcept {
  const std::lock_guard lock(mutex_);
  idle_.insert(std::move(block));
}

Pool::Events Pool::take_event() {
  Events taken;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_events_.empty()) {
      taken.splice(taken.begin(), idle_events_, idle_events_.begin());
      return taken;
    }
  }
  taken.push_back(nullptr);
  check(api_, api_.cuda.event_create(&taken.front(), cudaEventDisableTiming), "creating an event");
  return taken;
}

void Pool::give_back(Events& event) noexcept {
  const std::lock_guard lock(mutex_);
  idle_events_.splice(idle_events_.begin(), event);
}

Event::Event(Pool& pool, cudaStream_t stream) : pool_(&pool), event_(pool.take_event()) {
  const cudaError_t result = pool.api_.cuda.event_record(get(), stream);
  if (result == cudaSuccess) return;
  pool.give_back(event_);
  check(pool.api_, result, "recording an event");
}

Event::~Event() {
  if (!event_.empty()) pool_->give_back(event_);
}

bool Event::passed() const {
  const CudaTable& cuda = pool_->api_.cuda;
  const cudaError_t result = cuda.event_query(get());
  if (result == cudaErrorNotReady) {
    cuda.get_last_error();
    return false;
  }
  check(pool_->api_, result, "querying an event");
  return true;
}

// Powers of two, so that blocks can be reused for other sizes.
PooledMemory::PooledMemory(Pool& pool, uint64_t bytes, MemoryKind kind)
    : pool_(&pool), block_(pool.take(kind, std::bit_ceil(std::max<uint64_t>(bytes, 512)))) {}

PooledMemory::~PooledMemory() {
  if (block_) pool_->give_back(std::move(block_));
}

PooledMemory& PooledMemory::operator=(PooledMemory&& other) noexcept {
  std::swap(pool_, other.pool_);
  block_.swap(other.block_);
  return *this;
}

void StagingBuffer::copy_in(const Api& api, const void* from, uint64_t bytes, cudaStream_t stream) const {
  std::memcpy(host.data(), from, bytes);
  check(api, api.cuda.memcpy_async(device.data(), host.data(), bytes, cudaMemcpyHostToDevice, stream),
        "copying a host buffer to the device");
}

void StagingBuffer::copy_out(const Api& api, uint64_t bytes, cudaStream_t stream) const {
  check(api, api.cuda.memcpy_async(host.data(), device.data(), bytes, cudaMemcpyDeviceToHost, stream),
        "copying a result from the device to the host");
}

Staging::Staging(const Api& api, Pool& pool, bp_op* op, cudaStream_t stream) : api_(api) {
  const uint64_t width = bp_dtype_size(op->dtype);
  const uint64_t in_bytes = op->input.count * width;
  output_bytes_ = op->output.memory == BP_HOST ? op->output.count * width : 0;
  auto* const in = static_cast<std::byte*>(op->input.data);
  auto* const out = static_cast<std::byte*>(op->output.data);
  const bool has_input = in_bytes > 0 && op->input.memory == BP_HOST;
  const bool in_within_out = has_input && lies_within(in, in_bytes, out, output_bytes_);
  const bool out_within_in = has_input && !in_within_out && lies_within(out, output_bytes_, in, in_bytes);
  caller_output_ = out;
  if (output_bytes_ > 0 && !out_within_in) {
    output_ = StagingBuffer(pool, output_bytes_);
    device_output_ = output_.device.data();
    host_output_ = output_.host.data();
    // The gaps between the blocks of an output must keep the caller's data.
    if (in_within_out || op->out_displs != nullptr) output_.copy_in(api, out, output_bytes_, stream);
  }
  if (in_within_out) {
    op->input.data = device_output_ + (in - out);
  } else if (has_input) {
    input_ = StagingBuffer(pool, in_bytes);
    input_.copy_in(api, in, in_bytes, stream);
    op->input.data = input_.device.data();
    if (out_within_in) {
      device_output_ = input_.device.data() + (out - in);
      host_output_ = input_.host.data() + (out - in);
    }
  }
  if (output_bytes_ > 0) op->output.data = device_output_;
}

void Staging::copy_out(cudaStream_t stream) const {
  if (output_bytes_ == 0) return;
  check(api_, api_.cuda.memcpy_async(host_output_, device_output_, output_bytes_, cudaMemcpyDeviceToHost, stream),
        "copying a result from the device to the host");
}

void Staging::finish() const {
  if (output_bytes_ > 0) std::memcpy(caller_output_, host_output_, output_bytes_);
}

}  // namespace backplane::nccl
