// SPDX-License-Identifier: Apache-2.0
//
// The functions of the CUDA runtime that the plugin calls.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>

#include "settings.hpp"
#include "stream.hpp"

namespace double_ = backplane::nccl_double;

namespace {

int device_count() { return static_cast<int>(double_::setting("BACKPLANE_DOUBLE_DEVICES", 8)); }
int driver_version() { return static_cast<int>(double_::setting("BACKPLANE_DOUBLE_DRIVER", 13000)); }

std::mutex blocks_mutex;
std::map<const std::byte*, double_::Block>& blocks() {
  static auto* const map = new std::map<const std::byte*, double_::Block>;
  return *map;
}

cudaError_t allocate(void** data, size_t size, bool is_host) {
  if (double_::fails()) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(512, (size + 511) / 512 * 512);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(blocks_mutex);
  blocks()[static_cast<const std::byte*>(*data)] = {size, is_host, double_::current_device()};
  return cudaSuccess;
}

cudaError_t release(void* data, bool is_host) {
  if (data == nullptr) return cudaSuccess;
  int device = 0;
  {
    const std::lock_guard lock(blocks_mutex);
    const auto found = blocks().find(static_cast<const std::byte*>(data));
    if (found == blocks().end() || found->second.is_host != is_host) return cudaErrorInvalidValue;
    device = found->second.device;
    blocks().erase(found);
  }
  double_::synchronize(device);
  std::free(data);
  return cudaSuccess;
}

std::atomic<int> failing_device = -1;
std::atomic<uint64_t> failing_call = 0;
std::atomic<uint64_t> calls = 0;

}  // namespace

bool double_::fails() { return current_device() == failing_device.load() && ++calls == failing_call.load(); }

std::optional<double_::Block> double_::block_of(const void* data) {
  const auto* const at = static_cast<const std::byte*>(data);
  const std::lock_guard lock(blocks_mutex);
  auto after = blocks().upper_bound(at);
  if (after == blocks().begin()) return {};
  const auto& [begin, block] = *--after;
  if (at >= begin + block.size) return {};
  return block;
}

extern "C" {

void double_fail(int device, uint64_t number) {
  failing_device.store(-1);
  calls.store(0);
  failing_call.store(number);
  failing_device.store(device);
}
uint64_t double_calls() { return calls.load(); }

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the test double";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (driver_version() == 0 || driver_version() < 12000) return cudaErrorInsufficientDriver;
  *count = device_count();
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = double_::current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
  double_::current_device() = device;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t size) { return allocate(data, size, false); }
cudaError_t cudaMallocHost(void** data, size_t size) { return allocate(data, size, true); }

cudaError_t cudaFree(void* data) { return release(data, false); }
cudaError_t cudaFreeHost(void* data) { return release(data, true); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = size_t{1} << 32;
  *free = *total;
  const std::lock_guard lock(blocks_mutex);
  for (const auto& [data, block] : blocks()) {
    if (!block.is_host && block.device == double_::current_device()) *free -= block.size;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrComputeCapabilityMajor) return cudaErrorInvalidValue;
  *value = static_cast<int>(double_::setting("BACKPLANE_DOUBLE_CC", 90)) / 10;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (device < 0 || peer < 0 || device >= device_count() || peer >= device_count()) return cudaErrorInvalidDevice;
  *can = device != peer && std::max(device, peer) < double_::setting("BACKPLANE_DOUBLE_PEERS", device_count()) ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  const auto target = double_::block_of(to);
  const auto source = double_::block_of(from);
  const bool to_device = target && !target->is_host;
  const bool from_device = source && !source->is_host;
  if (kind != cudaMemcpyDefault) {
    const bool goes_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool comes_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (goes_to_device != to_device || comes_from_device != from_device) return cudaErrorInvalidValue;
  }
  double_::stream_of(stream).add([to, from, size] { std::memcpy(to, from, size); });
  // A copy from or to pageable memory blocks the caller until it is done.
  return target && source ? cudaSuccess : cudaStreamSynchronize(stream);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  double_::stream_of(stream).add([to, value, size] { std::memset(to, value, size); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  try {
    *stream = new CUstream_st;
    return cudaSuccess;
  } catch (const std::system_error&) {
    return cudaErrorMemoryAllocation;  // no thread can be created
  }
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  double_::stream_of(stream).add([mark = event->mark, number = event->mark->recorded()] { mark->await(number); });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  double_::stream_of(stream).add([function, data] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  if (event->device != double_::device_of(stream)) return cudaErrorInvalidResourceHandle;
  double_::stream_of(stream).add([mark = event->mark, number = event->mark->record()] { mark->pass(number); });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  return event->mark->passed() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (double_::fails()) return cudaErrorLaunchFailure;
  const auto mark = std::make_shared<double_::Mark>();
  double_::stream_of(stream).add([mark, number = mark->record()] { mark->pass(number); });
  mark->await(1);
  return cudaSuccess;
}

}  // extern "C"
