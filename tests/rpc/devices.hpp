// SPDX-License-Identifier: Apache-2.0
//
// Device arrays of the program, over the test double of the CUDA driver.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "backplane/rpc.hpp"
#include "cuda_double.hpp"

namespace backplane::test {

// Makes a device's context current for this thread. The contexts are retained for the life of the program.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    static const auto* const contexts = [] {
      auto* const all = new std::vector<void*>(2);
      for (int each = 0; each < 2; ++each) {
        if (cuDevicePrimaryCtxRetain(&(*all)[static_cast<size_t>(each)], each) != 0)
          throw std::runtime_error("context");
      }
      return all;
    }();
    cuCtxPushCurrent_v2(contexts->at(static_cast<size_t>(device)));
  }
  ~OnDevice() {
    void* context = nullptr;
    cuCtxPopCurrent_v2(&context);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

template <typename T>
rpc::DeviceArray<T> on_device(const std::vector<T>& values, int device) {
  if (values.empty()) return rpc::DeviceArray<T>(nullptr, 0, device);
  const OnDevice here(device);
  void* data = nullptr;
  if (cuMemAlloc_v2(&data, values.size() * sizeof(T)) != 0)
    throw std::runtime_error("the CUDA test double is out of memory");
  cuMemcpyHtoDAsync_v2(data, values.data(), values.size() * sizeof(T), nullptr);
  return rpc::DeviceArray<T>(static_cast<T*>(data), values.size(), device,
                             std::shared_ptr<void>(data, [device](void* at) {
                               const OnDevice freeing(device);
                               cuMemFree_v2(at);
                             }));
}

template <typename T>
std::vector<T> on_host(const rpc::DeviceArray<T>& array) {
  std::vector<T> values(array.size());
  const OnDevice there(array.device().ordinal);
  if (values.empty()) return values;
  EXPECT_EQ(cuMemcpyDtoH_v2(values.data(), array.data(), values.size() * sizeof(T)), 0);
  return values;
}

}  // namespace backplane::test
