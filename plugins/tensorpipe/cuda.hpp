// SPDX-License-Identifier: Apache-2.0
//
// Memory of CUDA devices, through the driver's own functions, which are looked up at run time: nothing of CUDA is
// needed to build this, and no driver to run it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace backplane::tensorpipe {

// How many devices the driver counts. If none, *why (may be NULL) says what is missing.
int count_cuda_devices(std::string* why = nullptr);

// One device in its primary context, which is also that of the program's CUDA runtime. Any thread; what is copied from
// host to device, one at a time. All throw sdk::Failure, which names the device, and the driver's error by its name.
class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  // Keeps the context until it goes: this, and all memory that it has given.
  explicit CudaDevice(int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // BP_RESOURCE if there is no such memory to be had. Freed with the last pointer, on any thread, which waits for what
  // the device is doing.
  std::shared_ptr<void> allocate(uint64_t bytes);
  // Behind what was given to the device's default stream before; other streams are not waited for. BP_INVALID if
  // `from` is not this device's, BP_CANCELLED if `over` becomes true meanwhile.
  void copy_to_host(void* to, const void* from, uint64_t bytes, const std::atomic<bool>& over);
  // Beside what the program's streams do: `to` is new. It is there when this returns.
  void copy_from_host(void* to, const void* from, uint64_t bytes, const std::atomic<bool>& over);

 private:
  class Current;  // its context is that of the thread meanwhile

  void check(int result, const char* what, int32_t status) const;

  const int ordinal_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
};

// Those of this process, each made when it is first asked for.
class CudaDevices {
 public:
  std::shared_ptr<CudaDevice> get(int ordinal);

 private:
  std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<CudaDevice>> devices_;
};

}  // namespace backplane::tensorpipe
