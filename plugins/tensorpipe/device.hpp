// SPDX-License-Identifier: Apache-2.0
//
// Memory of CUDA devices through the driver API, looked up at run time: neither CUDA at build time nor a driver at run
// time is required.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace backplane::tensorpipe {

// The number of devices. If it is 0, sets *why (may be NULL) to the reason.
int count_cuda_devices(std::string* why = nullptr);

// A device in its primary context, which the CUDA runtime of the program shares. Thread-safe; copies from the host run
// one at a time. All functions throw sdk::Failure with the device and the name of the driver's error.
class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  // Retains the context until this object and all memory allocated from it are destroyed.
  explicit CudaDevice(int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // Throws BP_RESOURCE if the device has no memory. Freed with the last pointer, on any thread; freeing waits for the
  // device.
  std::shared_ptr<void> allocate(uint64_t bytes);
  // Waits for work submitted to the device's default stream before, and for no other stream. Throws BP_INVALID if
  // `from` is not memory of this device, BP_CANCELLED if `is_stopped` becomes true.
  void copy_to_host(void* to, const void* from, uint64_t bytes, const std::atomic<bool>& is_stopped);
  // Independent of the program's streams, since `to` is new memory. Complete on return.
  void copy_from_host(void* to, const void* from, uint64_t bytes, const std::atomic<bool>& is_stopped);

 private:
  class CurrentContext;  // makes the context current for the thread

  void check(int result, const char* what, int32_t status) const;

  const int ordinal_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
};

// The devices of this process, created on first use.
class CudaDevices {
 public:
  std::shared_ptr<CudaDevice> get(int ordinal);

 private:
  std::mutex mutex_;  // guards devices_
  std::vector<std::shared_ptr<CudaDevice>> devices_;
};

}  // namespace backplane::tensorpipe
