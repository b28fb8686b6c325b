// SPDX-License-Identifier: Apache-2.0
#include "api.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "backplane/sdk/failure.hpp"

namespace backplane::nccl {
namespace {

// The first version that launches operations of a non-blocking communicator on a separate thread. Older versions launch
// inside ncclGroupEnd and wait there for space in the stream, during which the communicator cannot be aborted.
constexpr int kMinVersion = 22304;

class Library {
 public:
  explicit Library(const std::string& name) : name_(name), handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* const why = ::dlerror();
    throw sdk::Failure(
        BP_UNSUPPORTED,
        std::string("NCCL cannot be loaded; install it, or set BACKPLANE_NCCL_LIBRARY or the option library to its "
                    "file: ") +
            (why == nullptr ? name : why));
  }

  template <typename Function>
  bool find(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(handle_, symbol));
    return function != nullptr;
  }
  template <typename Function>
  void require(const char* symbol, Function& function) const {
    if (find(symbol, function)) return;
    throw sdk::Failure(BP_UNSUPPORTED, name_ + " has no function " + symbol + "; NCCL 2.23 or newer is needed");
  }

 private:
  const std::string name_;
  void* const handle_;  // never closed: NCCL has threads of its own
};

void find_nccl(const Library& library, NcclTable& table) {
  library.require("ncclGetVersion", table.get_version);
  library.require("ncclGetUniqueId", table.get_unique_id);
  library.require("ncclGetErrorString", table.get_error_string);
  library.require("ncclGetLastError", table.get_last_error);
  library.require("ncclCommInitRankConfig", table.comm_init_rank_config);
  library.require("ncclCommFinalize", table.comm_finalize);
  library.require("ncclCommDestroy", table.comm_destroy);
  library.require("ncclCommAbort", table.comm_abort);
  library.require("ncclCommGetAsyncError", table.comm_get_async_error);
  library.require("ncclGroupStart", table.group_start);
  library.require("ncclGroupEnd", table.group_end);
  library.require("ncclAllReduce", table.all_reduce);
  library.require("ncclReduce", table.reduce);
  library.require("ncclBroadcast", table.broadcast);
  library.require("ncclAllGather", table.all_gather);
  library.require("ncclReduceScatter", table.reduce_scatter);
  library.require("ncclSend", table.send);
  library.require("ncclRecv", table.recv);
  library.require("ncclRedOpCreatePreMulSum", table.red_op_create_pre_mul_sum);
  library.require("ncclRedOpDestroy", table.red_op_destroy);
  if (!library.find("ncclMemAlloc", table.mem_alloc) || !library.find("ncclMemFree", table.mem_free)) {
    table.mem_alloc = nullptr;
    table.mem_free = nullptr;
  }
  if (!library.find("ncclCommRegister", table.comm_register) ||
      !library.find("ncclCommDeregister", table.comm_deregister)) {
    table.comm_register = nullptr;
    table.comm_deregister = nullptr;
  }
  library.find("ncclAlltoAll", table.all_to_all);
}

CudaTable linked_cuda() {
  return {cudaGetErrorString,
          cudaGetLastError,
          cudaDriverGetVersion,
          cudaGetDeviceCount,
          cudaGetDevice,
          cudaSetDevice,
          cudaDeviceGetAttribute,
          cudaDeviceCanAccessPeer,
          cudaMalloc,
          cudaFree,
          cudaMallocHost,
          cudaFreeHost,
          cudaMemcpyAsync,
          cudaMemsetAsync,
          cudaStreamCreateWithFlags,
          cudaStreamDestroy,
          cudaStreamSynchronize,
          cudaStreamWaitEvent,
          cudaEventCreateWithFlags,
          cudaEventDestroy,
          cudaEventRecord,
          cudaEventQuery,
          cudaLaunchHostFunc,
          cudaMemGetInfo};
}

// The library's runtime if it is complete, else the linked one. They cannot be mixed: neither knows the other's
// streams.
CudaTable find_cuda(const Library& library) {
  CudaTable table;
  const bool has_all =
      library.find("cudaGetErrorString", table.get_error_string) &&
      library.find("cudaGetLastError", table.get_last_error) &&
      library.find("cudaDriverGetVersion", table.driver_get_version) &&
      library.find("cudaGetDeviceCount", table.get_device_count) && library.find("cudaGetDevice", table.get_device) &&
      library.find("cudaSetDevice", table.set_device) &&
      library.find("cudaDeviceGetAttribute", table.device_get_attribute) &&
      library.find("cudaDeviceCanAccessPeer", table.device_can_access_peer) &&
      library.find("cudaMalloc", table.malloc) && library.find("cudaFree", table.free) &&
      library.find("cudaMallocHost", table.malloc_host) && library.find("cudaFreeHost", table.free_host) &&
      library.find("cudaMemcpyAsync", table.memcpy_async) && library.find("cudaMemsetAsync", table.memset_async) &&
      library.find("cudaStreamCreateWithFlags", table.stream_create) &&
      library.find("cudaStreamDestroy", table.stream_destroy) &&
      library.find("cudaStreamSynchronize", table.stream_synchronize) &&
      library.find("cudaStreamWaitEvent", table.stream_wait_event) &&
      library.find("cudaEventCreateWithFlags", table.event_create) &&
      library.find("cudaEventDestroy", table.event_destroy) && library.find("cudaEventRecord", table.event_record) &&
      library.find("cudaEventQuery", table.event_query);
  if (!has_all) return linked_cuda();
  library.find("cudaLaunchHostFunc", table.launch_host_func);
  library.find("cudaMemGetInfo", table.mem_get_info);
  return table;
}

std::unique_ptr<const Api> load(const std::string& name) {
  const Library library(name);
  auto api = std::make_unique<Api>();
  api->library = name;
  find_nccl(library, api->nccl);
  api->cuda = find_cuda(library);
  check(*api, api->nccl.get_version(&api->nccl_version), "getting the version of NCCL");
  if (api->nccl_version < kMinVersion) {
    throw sdk::Failure(BP_UNSUPPORTED,
                       name + " is NCCL " + nccl_version_text(api->nccl_version) + "; NCCL 2.23 or newer is needed");
  }
  return api;
}

int32_t status_of(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return BP_PEER_LOST;
    case ncclSystemError:
    case ncclUnhandledCudaError:
      return BP_RESOURCE;
    case ncclInvalidUsage:
    case ncclInvalidArgument:
      return BP_INVALID;
    default:
      return BP_INTERNAL;
  }
}

}  // namespace

std::string nccl_version_text(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

const Api& open_api(const std::string& library) {
  static std::mutex* const mutex = new std::mutex;  // never destroyed: other threads may use it during exit
  static auto* const opened = new std::map<std::string, std::unique_ptr<const Api>>;
  std::string name = library;
  const char* const named = ::secure_getenv("BACKPLANE_NCCL_LIBRARY");  // not set in a set-uid program
  if (name.empty() && named != nullptr) name = named;
  if (name.empty()) name = "libnccl.so.2";
  const std::lock_guard lock(*mutex);
  std::unique_ptr<const Api>& api = (*opened)[name];
  if (!api) api = load(name);
  return *api;
}

int count_devices(const Api& api) {
  int count = 0;
  const cudaError_t result = api.cuda.get_device_count(&count);
  if (result == cudaSuccess && count > 0) return count;
  api.cuda.get_last_error();  // clears it
  int driver = 0;
  const std::string found = "NCCL " + nccl_version_text(api.nccl_version) + " is installed, but ";
  if (api.cuda.driver_get_version(&driver) != cudaSuccess || driver == 0) {
    api.cuda.get_last_error();
    throw sdk::Failure(BP_UNSUPPORTED, found + "no CUDA driver (libcuda.so.1) was found; install the driver of the GPU",
                       -1, result);
  }
  if (result == cudaSuccess || result == cudaErrorNoDevice) {
    throw sdk::Failure(BP_UNSUPPORTED, found + "this machine has no CUDA device that this process may use", -1, result);
  }
  throw sdk::Failure(BP_UNSUPPORTED,
                     found + "CUDA cannot start: " + api.cuda.get_error_string(result) + " (driver for CUDA " +
                         std::to_string(driver / 1000) + "." + std::to_string(driver / 10 % 100) + ")",
                     -1, result);
}

std::string missing_peer_access(const Api& api, int count) {
  int pairs = 0;
  int without_access = 0;
  for (int device = 0; device < count; ++device) {
    for (int peer = 0; peer < device; ++peer) {
      int forward = 0;
      int backward = 0;
      if (api.cuda.device_can_access_peer(&forward, device, peer) != cudaSuccess ||
          api.cuda.device_can_access_peer(&backward, peer, device) != cudaSuccess) {
        api.cuda.get_last_error();
        return "the driver does not report which devices have peer access";
      }
      ++pairs;
      if (forward == 0 || backward == 0) ++without_access;
    }
  }
  if (without_access == 0) return "";
  return std::to_string(without_access) + " of " + std::to_string(pairs) +
         " pairs of devices have no peer access; NCCL uses host memory between them";
}

void check(const Api& api, cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  api.cuda.get_last_error();
  const int32_t status = result == cudaErrorInvalidValue || result == cudaErrorInvalidDevice ? BP_INVALID : BP_RESOURCE;
  throw sdk::Failure(status,
                     std::string("nccl: ") + what + ": CUDA error " + std::to_string(result) + ", " +
                         api.cuda.get_error_string(result),
                     -1, result);
}

void check(const Api& api, ncclResult_t result, const char* what, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  std::string text = std::string("nccl: ") + what + ": " + api.nccl.get_error_string(result);
  const char* const more = api.nccl.get_last_error(comm);
  if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
  throw sdk::Failure(status_of(result), text, -1, result);
}

}  // namespace backplane::nccl
