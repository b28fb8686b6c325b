// SPDX-License-Identifier: Apache-2.0
//
// backplane-device-call: two workers of this process call each other over TensorPipe with arrays in CUDA device memory,
// of devices 0 and 1 or of the only device, and compare every element. Prints one line. Exit codes: 0, with the calls
// and their times; 1, with the error; 2, with the reason why calls are impossible.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backplane/rpc.hpp"

using namespace backplane;  // NOLINT: a program

namespace {

using Floats = std::vector<float>;
using DeviceFloats = rpc::DeviceArray<float>;

struct Unavailable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The functions of the driver that the program calls, as declared in cuda.h.
struct Driver {
  using Pointer = unsigned long long;  // NOLINT(google-runtime-int): CUdeviceptr
  int (*init)(unsigned) = nullptr;
  int (*count)(int*) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*allocate)(Pointer*, size_t) = nullptr;
  int (*free)(Pointer) = nullptr;
  int (*to_host)(void*, Pointer, size_t) = nullptr;
  int (*to_device)(Pointer, const void*, size_t) = nullptr;
  std::vector<void*> contexts;
};

Driver driver;

template <typename Function>
void look_up(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) throw Unavailable(std::string("libcuda.so.1 has no function ") + name);
}

void load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Unavailable("no CUDA driver was found (libcuda.so.1)");
  look_up(library, "cuInit", &driver.init);
  look_up(library, "cuDeviceGetCount", &driver.count);
  look_up(library, "cuDevicePrimaryCtxRetain", &driver.retain);
  look_up(library, "cuCtxPushCurrent_v2", &driver.push);
  look_up(library, "cuCtxPopCurrent_v2", &driver.pop);
  look_up(library, "cuMemAlloc_v2", &driver.allocate);
  look_up(library, "cuMemFree_v2", &driver.free);
  look_up(library, "cuMemcpyDtoH_v2", &driver.to_host);
  look_up(library, "cuMemcpyHtoD_v2", &driver.to_device);
  int count = 0;
  const int result = driver.init(0) != 0 ? driver.init(0) : driver.count(&count);
  if (result != 0 || count == 0) {
    throw Unavailable("the CUDA driver offers no device (error " + std::to_string(result) + ")");
  }
  for (int device = 0; device < std::min(count, 2); ++device) {
    void* context = nullptr;
    const int retained = driver.retain(&context, device);
    if (retained != 0)
      throw Unavailable("cannot create a context on device " + std::to_string(device) + ": error " +
                        std::to_string(retained));
    driver.contexts.push_back(context);
  }
}

void check(int result, const char* what) {
  if (result != 0) throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(result));
}

class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(driver.push(driver.contexts.at(static_cast<size_t>(device))), "setting the context");
  }
  ~OnDevice() {
    void* context = nullptr;
    driver.pop(&context);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

DeviceFloats on_device(const Floats& values, int device) {
  const OnDevice here(device);
  Driver::Pointer data = 0;
  check(driver.allocate(&data, values.size() * sizeof(float)), "allocating device memory");
  auto* const pointer = reinterpret_cast<float*>(data);  // NOLINT(performance-no-int-to-ptr): of the driver
  std::shared_ptr<void> keep(pointer, [device](void* memory) {
    const OnDevice freeing(device);
    driver.free(reinterpret_cast<uintptr_t>(memory));
  });
  check(driver.to_device(data, values.data(), values.size() * sizeof(float)), "copying to the device");
  return DeviceFloats(pointer, values.size(), device, std::move(keep));
}

Floats on_host(const DeviceFloats& array) {
  const OnDevice there(array.device().ordinal);
  Floats values(array.size());
  check(driver.to_host(values.data(), reinterpret_cast<uintptr_t>(array.data()), values.size() * sizeof(float)),
        "copying to the host");
  return values;
}

// The median time of 9 calls with an array of `size` elements, in microseconds. Throws if a result is wrong.
double call(const rpc::Worker& worker, size_t size) {
  Floats values(size);
  std::iota(values.begin(), values.end(), 1.0F);
  const DeviceFloats sent = on_device(values, 0);
  Floats doubled = values;
  for (float& each : doubled) each *= 2;
  if (on_host(worker.rpc_sync<DeviceFloats>("callee", "double", sent)) != doubled) {
    throw std::runtime_error("an array of " + std::to_string(size) + " floats came back with other elements");
  }
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    const auto back = worker.rpc_sync<DeviceFloats>("callee", "echo", sent);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count());
    if (back.device() != Device::cuda(0)) throw std::runtime_error("a result arrived on another device");
    if (on_host(back) != values) throw std::runtime_error("an echo came back with other elements");
  }
  std::nth_element(times.begin(), times.begin() + 4, times.end());
  return times[4];
}

// Returns the report in one line.
std::string try_calls() {
  const int there = driver.contexts.size() > 1 ? 1 : 0;
  rpc::register_function("echo", [](const DeviceFloats& array) { return array; });
  rpc::register_function("double", [there](const DeviceFloats& array) {
    if (array.device().ordinal != there) throw std::runtime_error("an argument arrived on another device");
    Floats values = on_host(array);
    for (float& each : values) each *= 2;
    return on_device(values, there);
  });
  const Store store = Store::inproc();
  const auto join = [&store, there](int rank) {
    rpc::RpcOptions options;
    options.backend = "tensorpipe";
    if (rank == 0) options.backend += "?device_maps=callee:0=" + std::to_string(there);
    options.group = "inproc";
    options.store = store;
    options.rank = rank;
    options.world_size = 2;
    options.timeout = std::chrono::seconds(60);
    return rpc::Worker::join(rank == 0 ? "caller" : "callee", options);
  };
  std::string problem;
  std::thread callee([&join, &problem] {
    try {
      join(1).shutdown();
    } catch (const std::exception& e) {
      problem = e.what();
    }
  });
  char line[200] = "";
  try {
    const rpc::Worker caller = join(0);
    try {
      for (const size_t size : {1, 1000, 8192, 100003}) call(caller, size);
      const double small = call(caller, 1024);
      const double large = call(caller, 1 << 22);
      std::snprintf(line, sizeof(line),
                    "calls between device 0 and device %d: all elements right; round trip of 4 KiB in %.0f us, of "
                    "16 MiB in %.0f us",
                    there, small, large);
    } catch (const std::exception& e) {
      problem = e.what();
    }
    caller.shutdown();
  } catch (const std::exception& e) {
    if (problem.empty()) problem = e.what();
  }
  callee.join();
  if (!problem.empty()) throw std::runtime_error(problem);
  return line;
}

}  // namespace

int main() {
  try {
    load();
    std::printf("%s\n", try_calls().c_str());
    return 0;
  } catch (const Unavailable& e) {
    std::printf("not tried: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::printf("FAILED: %s\n", e.what());
    return 1;
  }
}
