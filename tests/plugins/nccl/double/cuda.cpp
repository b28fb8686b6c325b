// SPDX-License-Identifier: Apache-2.0
//
// The functions of the CUDA runtime that the plugin calls.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>

#include "settings.hpp"
#include "stream.hpp"

namespace double_ = backplane::nccl_double;

namespace {

int device_count() { return static_cast<int>(double_::setting("BACKPLANE_DOUBLE_DEVICES", 8)); }
int driver_version() { return static_cast<int>(double_::setting("BACKPLANE_DOUBLE_DRIVER", 13000)); }

}  // namespace

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the double";
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

cudaError_t cudaMalloc(void** data, size_t size) {
  *data = std::aligned_alloc(512, (size + 511) / 512 * 512);
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t size) { return cudaMalloc(data, size); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  double_::stream_of(stream).add([to, from, size] { std::memcpy(to, from, size); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  double_::stream_of(stream).add([to, value, size] { std::memset(to, value, size); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  try {
    *stream = new CUstream_st;
    return cudaSuccess;
  } catch (const std::system_error&) {
    return cudaErrorMemoryAllocation;  // no thread to be had
  }
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  double_::stream_of(stream).add([mark = event->mark, number = event->mark->recorded()] { mark->await(number); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  double_::stream_of(stream).add([mark = event->mark, number = event->mark->record()] { mark->pass(number); });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return event->mark->passed() ? cudaSuccess : cudaErrorNotReady; }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto mark = std::make_shared<double_::Mark>();
  double_::stream_of(stream).add([mark, number = mark->record()] { mark->pass(number); });
  mark->await(1);
  return cudaSuccess;
}

}  // extern "C"
