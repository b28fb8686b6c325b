// SPDX-License-Identifier: Apache-2.0
#include "cuda_double.hpp"

#include <sys/mman.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kMostDevices = 8;
enum { kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100, kInvalidDevice = 101, kInvalidContext = 201 };

struct Block {
  int device;
  std::vector<std::byte> bytes;  // the content; addresses of device memory are not accessible
};
struct Stream {
  int device;
  std::vector<std::pair<std::byte*, std::pair<const void*, size_t>>> copies;  // pending
};
struct Context {
  int device;
  int holders = 0;
};
struct Fault {
  std::string function;
  int device = -1;
  int result = 0;
  int after = 0;
};

struct Double {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<const std::byte*, Block> blocks;
  std::array<Context, kMostDevices> contexts = {{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}};
  Fault fault;
  bool holds = false;
  int held = 0;
  int violations = 0;
};

Double& it() {
  static auto* const instance = new Double;
  return *instance;
}

thread_local std::vector<Context*> current;

int setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}
int device_count() { return setting("BACKPLANE_DOUBLE_CUDA_DEVICES", 2); }

// Returns the injected error of this call, if any. Requires the mutex.
int injected_fault(const char* function, int device) {
  Fault& fault = it().fault;
  if (fault.function != function || fault.device != device) return kOk;
  return fault.after-- > 0 ? kOk : fault.result;
}

// Checks that the current context is retained, and applies injected faults. Requires the mutex.
int begin(const char* function, int* device) {
  if (current.empty() || current.back() == nullptr) return kInvalidContext;
  if (current.back()->holders == 0) {
    ++it().violations;
    return kInvalidContext;
  }
  *device = current.back()->device;
  return injected_fault(function, *device);
}

// The content at a device address; NULL unless `bytes` bytes are allocated there. Requires the mutex.
std::byte* find(const void* data, size_t bytes, int* device) {
  const auto* const at = static_cast<const std::byte*>(data);
  auto after = it().blocks.upper_bound(at);
  if (after == it().blocks.begin()) return nullptr;
  auto& [begin, block] = *--after;
  const auto offset = static_cast<size_t>(at - begin);
  if (offset > block.bytes.size() || bytes > block.bytes.size() - offset) return nullptr;
  *device = block.device;
  return block.bytes.data() + offset;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return device_count() == 0 ? kNoDevice : kOk; }
int cuDeviceGetCount(int* count) {
  *count = device_count();
  return kOk;
}
int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) return kInvalidDevice;
  *device = ordinal;
  return kOk;
}
int cuGetErrorName(int result, const char** name) {
  static const std::map<int, const char*> names = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                   {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                   {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
                                                   {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
                                                   {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                                                   {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  const auto found = names.find(result);
  if (found == names.end()) return kInvalidValue;
  *name = found->second;
  return kOk;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(it().mutex);
  if (const int result = injected_fault("cuDevicePrimaryCtxRetain", device)) return result;
  Context& own = it().contexts.at(static_cast<size_t>(device));
  ++own.holders;
  *context = &own;
  return kOk;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  const std::lock_guard lock(it().mutex);
  if (--it().contexts.at(static_cast<size_t>(device)).holders < 0) ++it().violations;
  return kOk;
}
int cuCtxPushCurrent_v2(void* context) {
  current.push_back(static_cast<Context*>(context));
  return kOk;
}
int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kOk;
}

int cuMemAlloc_v2(void** data, size_t bytes) {
  const std::lock_guard lock(it().mutex);
  int device = 0;
  if (const int result = begin("cuMemAlloc_v2", &device)) return result;
  if (bytes == 0) return kInvalidValue;
  void* const reserved = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return kOutOfMemory;
  it().blocks[static_cast<const std::byte*>(reserved)] = {device, std::vector<std::byte>(bytes)};
  *data = reserved;
  return kOk;
}
int cuMemFree_v2(void* data) {
  const std::lock_guard lock(it().mutex);
  int device = 0;
  if (const int result = begin("cuMemFree_v2", &device)) return result;
  const auto found = it().blocks.find(static_cast<const std::byte*>(data));
  if (found == it().blocks.end() || found->second.device != device) {
    ++it().violations;
    return kInvalidValue;
  }
  munmap(data, found->second.bytes.size());
  it().blocks.erase(found);
  return kOk;
}

int cuPointerGetAttribute(void* value, int attribute, const void* data) {
  const std::lock_guard lock(it().mutex);
  int device = -1;
  if (attribute != 9 || find(data, 1, &device) == nullptr) return kInvalidValue;
  *static_cast<int*>(value) = device;
  return kOk;
}

int cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes) {
  std::unique_lock lock(it().mutex);
  int device = 0;
  if (const int result = begin("cuMemcpyDtoH_v2", &device)) return result;
  ++it().held;
  it().changed.notify_all();
  it().changed.wait(lock, [] { return !it().holds; });
  --it().held;
  int lies_on = 0;
  const std::byte* const source = find(from, bytes, &lies_on);
  if (source == nullptr) return kInvalidValue;
  std::memcpy(to, source, bytes);
  return kOk;
}

int cuStreamCreate(void** stream, unsigned) {
  const std::lock_guard lock(it().mutex);
  int device = 0;
  if (const int result = begin("cuStreamCreate", &device)) return result;
  *stream = new Stream{device, {}};
  return kOk;
}
int cuStreamDestroy_v2(void* stream) {
  const std::lock_guard lock(it().mutex);
  int device = 0;
  if (begin("cuStreamDestroy_v2", &device) != kOk) ++it().violations;
  delete static_cast<Stream*>(stream);
  return kOk;
}
int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  const std::lock_guard lock(it().mutex);
  int device = 0;
  if (const int result = begin("cuMemcpyHtoDAsync_v2", &device)) return result;
  int lies_on = 0;
  std::byte* const target = find(to, bytes, &lies_on);
  if (target == nullptr) return kInvalidValue;
  if (stream == nullptr) {  // called by the test
    std::memcpy(target, from, bytes);
  } else {
    static_cast<Stream*>(stream)->copies.push_back({target, {from, bytes}});
  }
  return kOk;
}
int cuMemcpyHtoD_v2(void* to, const void* from, size_t bytes) { return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr); }
int cuStreamSynchronize(void* stream) {
  const std::lock_guard lock(it().mutex);
  const auto copies = std::exchange(static_cast<Stream*>(stream)->copies, {});  // cleared also on failure
  int device = 0;
  if (const int result = begin("cuStreamSynchronize", &device)) return result;
  for (const auto& [target, source] : copies) {
    std::memcpy(target, source.first, source.second);
    if (setting("BACKPLANE_DOUBLE_CUDA_WRONG", 0) == 0) continue;
    *target = static_cast<std::byte>(std::to_integer<unsigned>(*target) + 1);
  }
  return kOk;
}

void cuda_double_fail(const char* function, int device, int result, int after) {
  const std::lock_guard lock(it().mutex);
  it().fault = {function, device, result, after};
}
void cuda_double_hold(int holds) {
  const std::lock_guard lock(it().mutex);
  it().holds = holds != 0;
  it().changed.notify_all();
}
int cuda_double_holds_one() {
  std::unique_lock lock(it().mutex);
  return it().changed.wait_for(lock, std::chrono::seconds(20), [] { return it().holds && it().held > 0; }) ? 1 : 0;
}
uint64_t cuda_double_blocks(int device) {
  const std::lock_guard lock(it().mutex);
  uint64_t count = 0;
  for (const auto& [data, block] : it().blocks) count += block.device == device ? 1 : 0;
  return count;
}
uint64_t cuda_double_bytes(int device) {
  const std::lock_guard lock(it().mutex);
  uint64_t bytes = 0;
  for (const auto& [data, block] : it().blocks) bytes += block.device == device ? block.bytes.size() : 0;
  return bytes;
}
int cuda_double_contexts(int device) {
  const std::lock_guard lock(it().mutex);
  return it().contexts.at(static_cast<size_t>(device)).holders;
}
int cuda_double_violations() {
  const std::lock_guard lock(it().mutex);
  return it().violations;
}

}  // extern "C"
