// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "backplane/sdk/failure.hpp"

namespace backplane::tensorpipe {
namespace {

// As in cuda.h.
using Pointer = unsigned long long;   // NOLINT(google-runtime-int): CUdeviceptr
constexpr int kOutOfMemory = 2;       // CUDA_ERROR_OUT_OF_MEMORY
constexpr int kDeviceOrdinal = 9;     // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*device_get_count)(int* count) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*primary_retain)(void** context, int device) = nullptr;
  int (*primary_release)(int device) = nullptr;
  int (*push_current)(void* context) = nullptr;
  int (*pop_current)(void** context) = nullptr;
  int (*mem_alloc)(Pointer* data, size_t bytes) = nullptr;
  int (*mem_free)(Pointer data) = nullptr;
  int (*copy_to_host)(void* to, Pointer from, size_t bytes) = nullptr;
  int (*copy_from_host)(Pointer to, const void* from, size_t bytes, void* stream) = nullptr;
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_synchronize)(void* stream) = nullptr;
  int (*pointer_get_attribute)(void* value, int attribute, Pointer data) = nullptr;
  int (*get_error_name)(int result, const char** name) = nullptr;
  std::string missing;  // why it cannot be used; empty if it can
};

template <typename Function>
void look_up(void* library, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing->empty()) missing->append("libcuda.so.1 has no function ").append(name);
}

std::string name_of(const Driver& driver, int result) {
  const char* name = nullptr;
  if (driver.get_error_name == nullptr || driver.get_error_name(result, &name) != 0 || name == nullptr) {
    return "error " + std::to_string(result);
  }
  return name;
}

Driver load() {
  Driver it;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    it.missing = "no CUDA driver (libcuda.so.1) found";
    return it;
  }
  look_up(library, "cuInit", &it.init, &it.missing);
  look_up(library, "cuDeviceGetCount", &it.device_get_count, &it.missing);
  look_up(library, "cuDeviceGet", &it.device_get, &it.missing);
  look_up(library, "cuDevicePrimaryCtxRetain", &it.primary_retain, &it.missing);
  look_up(library, "cuDevicePrimaryCtxRelease_v2", &it.primary_release, &it.missing);
  look_up(library, "cuCtxPushCurrent_v2", &it.push_current, &it.missing);
  look_up(library, "cuCtxPopCurrent_v2", &it.pop_current, &it.missing);
  look_up(library, "cuMemAlloc_v2", &it.mem_alloc, &it.missing);
  look_up(library, "cuMemFree_v2", &it.mem_free, &it.missing);
  look_up(library, "cuMemcpyDtoH_v2", &it.copy_to_host, &it.missing);
  look_up(library, "cuMemcpyHtoDAsync_v2", &it.copy_from_host, &it.missing);
  look_up(library, "cuStreamCreate", &it.stream_create, &it.missing);
  look_up(library, "cuStreamDestroy_v2", &it.stream_destroy, &it.missing);
  look_up(library, "cuStreamSynchronize", &it.stream_synchronize, &it.missing);
  look_up(library, "cuPointerGetAttribute", &it.pointer_get_attribute, &it.missing);
  look_up(library, "cuGetErrorName", &it.get_error_name, &it.missing);
  return it;
}

// Never closed, because memory from it may outlive every agent.
const Driver& driver() {
  static const auto* const loaded = new Driver(load());
  return *loaded;
}

Pointer pointer(const void* data) { return reinterpret_cast<uintptr_t>(data); }

// Copies in pieces, so that a stop takes effect between them.
template <typename Copy>
void copy_in_pieces(uint64_t bytes, const std::atomic<bool>& is_stopped, const Copy& copy) {
  constexpr uint64_t kPiece = 64 << 20;
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    if (is_stopped) throw sdk::Failure(BP_CANCELLED, "this worker has left");
    copy(at, std::min(kPiece, bytes - at));
  }
}

}  // namespace

int count_cuda_devices(std::string* why) {
  const Driver& it = driver();
  std::string missing = it.missing;
  int count = 0;
  if (missing.empty()) {
    int result = it.init(0);
    if (result == 0) result = it.device_get_count(&count);
    if (result != 0) missing = "the CUDA driver reports no devices: " + name_of(it, result);
    if (result != 0) count = 0;
  }
  if (why != nullptr) *why = std::move(missing);
  return count;
}

// Makes a context current for the thread. If the driver refuses, the next call reports it.
class CudaDevice::CurrentContext {
 public:
  explicit CurrentContext(void* context) : pushed_(driver().push_current(context) == 0) {}
  ~CurrentContext() {
    void* context = nullptr;
    if (pushed_) driver().pop_current(&context);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const bool pushed_;
};

void CudaDevice::check(int result, const char* what, int32_t status) const {
  if (result == 0) return;
  throw sdk::Failure(
      status, "CUDA device " + std::to_string(ordinal_) + " could not " + what + ": " + name_of(driver(), result), -1,
      result);
}

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal) {
  std::string why;
  if (count_cuda_devices(&why) <= ordinal) {
    throw sdk::Failure(
        BP_INVALID, "there is no CUDA device " + std::to_string(ordinal) + " here" + (why.empty() ? "" : ": " + why));
  }
  int device = 0;
  check(driver().device_get(&device, ordinal), "be found", BP_INTERNAL);
  check(driver().primary_retain(&context_, device), "give its context", BP_RESOURCE);
  const CurrentContext current(context_);
  const int result = driver().stream_create(&stream_, kNonBlocking);
  if (result == 0) return;
  driver().primary_release(device);
  check(result, "make a stream", BP_RESOURCE);
}

CudaDevice::~CudaDevice() {
  {
    const CurrentContext current(context_);
    driver().stream_destroy(stream_);
  }
  int device = 0;
  if (driver().device_get(&device, ordinal_) == 0) driver().primary_release(device);
}

std::shared_ptr<void> CudaDevice::allocate(uint64_t bytes) {
  const CurrentContext current(context_);
  Pointer data = 0;
  const int result = driver().mem_alloc(&data, bytes);
  if (result == kOutOfMemory) {
    throw sdk::Failure(BP_RESOURCE,
                       "CUDA device " + std::to_string(ordinal_) + " has no memory for a buffer of " +
                           std::to_string(bytes) + " bytes: " + name_of(driver(), result) +
                           "; free some there, or send less at a time",
                       -1, result);
  }
  check(result, "give memory for a buffer", BP_INTERNAL);
  return {reinterpret_cast<void*>(data),  // NOLINT(performance-no-int-to-ptr): the driver's type
          [self = shared_from_this()](void* memory) {
            const CurrentContext freeing(self->context_);
            driver().mem_free(pointer(memory));
          }};
}

void CudaDevice::copy_to_host(void* to, const void* from, uint64_t bytes, const std::atomic<bool>& is_stopped) {
  const CurrentContext current(context_);
  int lies_on = -1;
  const int result = driver().pointer_get_attribute(&lies_on, kDeviceOrdinal, pointer(from));
  if (result != 0 || lies_on != ordinal_) {
    throw sdk::Failure(BP_INVALID,
                       "a buffer is not in the memory of CUDA device " + std::to_string(ordinal_) + ", as it is said " +
                           (result == 0 ? "to be, but of device " + std::to_string(lies_on)
                                        : "to be (" + name_of(driver(), result) + ")"),
                       -1, result);
  }
  copy_in_pieces(bytes, is_stopped, [this, to, from](uint64_t at, uint64_t length) {
    check(driver().copy_to_host(static_cast<std::byte*>(to) + at, pointer(from) + at, length),
          "copy a buffer to the host", BP_INTERNAL);
  });
}

void CudaDevice::copy_from_host(void* to, const void* from, uint64_t bytes, const std::atomic<bool>& is_stopped) {
  const CurrentContext current(context_);
  copy_in_pieces(bytes, is_stopped, [this, to, from](uint64_t at, uint64_t length) {
    const auto* const source = static_cast<const std::byte*>(from) + at;
    int result = driver().copy_from_host(pointer(to) + at, source, length, stream_);
    // Also after a failure: no copy may be in progress when the memory is freed.
    const int end = driver().stream_synchronize(stream_);
    if (result == 0) result = end;
    check(result, "copy a buffer from the host", BP_INTERNAL);
  });
}

std::shared_ptr<CudaDevice> CudaDevices::get(int ordinal) {
  const std::lock_guard lock(mutex_);
  const auto at = static_cast<size_t>(ordinal);
  if (at >= devices_.size()) devices_.resize(at + 1);
  if (!devices_[at]) devices_[at] = std::make_shared<CudaDevice>(ordinal);
  return devices_[at];
}

}  // namespace backplane::tensorpipe
