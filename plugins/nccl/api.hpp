// SPDX-License-Identifier: Apache-2.0
//
// Tables of the functions of NCCL and CUDA. The plugin calls the libraries only through them.
//
// NCCL is opened at run time and never closed. The CUDA runtime is linked statically and looks for the driver at its
// first call. If the NCCL library exports a CUDA runtime, that one is used, because only it knows the library's
// streams.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

namespace backplane::nccl {

struct NcclTable {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclRedOpCreatePreMulSum) red_op_create_pre_mul_sum = nullptr;
  decltype(&ncclRedOpDestroy) red_op_destroy = nullptr;
  // Optional: null if the library is too old.
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  decltype(&ncclCommRegister) comm_register = nullptr;
  decltype(&ncclCommDeregister) comm_deregister = nullptr;
  ncclResult_t (*all_to_all)(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                             cudaStream_t stream) = nullptr;  // ncclAlltoAll; not in older headers
};

// The C functions. The pointer types select them among C++ overloads of the same name.
struct CudaTable {
  const char* (*get_error_string)(cudaError_t) = nullptr;
  cudaError_t (*get_last_error)() = nullptr;
  cudaError_t (*driver_get_version)(int*) = nullptr;
  cudaError_t (*get_device_count)(int*) = nullptr;
  cudaError_t (*get_device)(int*) = nullptr;
  cudaError_t (*set_device)(int) = nullptr;
  cudaError_t (*device_get_attribute)(int*, cudaDeviceAttr, int) = nullptr;
  cudaError_t (*device_can_access_peer)(int*, int, int) = nullptr;
  cudaError_t (*malloc)(void**, size_t) = nullptr;
  cudaError_t (*free)(void*) = nullptr;
  cudaError_t (*malloc_host)(void**, size_t) = nullptr;
  cudaError_t (*free_host)(void*) = nullptr;
  cudaError_t (*memcpy_async)(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) = nullptr;
  cudaError_t (*memset_async)(void*, int, size_t, cudaStream_t) = nullptr;
  cudaError_t (*stream_create)(cudaStream_t*, unsigned) = nullptr;
  cudaError_t (*stream_destroy)(cudaStream_t) = nullptr;
  cudaError_t (*stream_synchronize)(cudaStream_t) = nullptr;
  cudaError_t (*stream_wait_event)(cudaStream_t, cudaEvent_t, unsigned) = nullptr;
  cudaError_t (*event_create)(cudaEvent_t*, unsigned) = nullptr;
  cudaError_t (*event_destroy)(cudaEvent_t) = nullptr;
  cudaError_t (*event_record)(cudaEvent_t, cudaStream_t) = nullptr;
  cudaError_t (*event_query)(cudaEvent_t) = nullptr;
  // Optional: used only by tools/gpu/nccl_launch_cost.cpp.
  cudaError_t (*launch_host_func)(cudaStream_t, cudaHostFn_t, void*) = nullptr;
  cudaError_t (*mem_get_info)(size_t*, size_t*) = nullptr;
};

struct Api {
  NcclTable nccl;
  CudaTable cuda;
  std::string library;   // the name it was opened by
  int nccl_version = 0;  // NCCL_VERSION_CODE, such as 22809
};

// The version in words, such as "2.28.9".
std::string nccl_version_text(int code);

// Opens the library, a path or a name for the loader; empty: BACKPLANE_NCCL_LIBRARY, else libnccl.so.2. Each name is
// opened once per process. Throws BP_UNSUPPORTED with the reason. Thread-safe; blocks while the file is loaded.
const Api& open_api(const std::string& library);

// The number of devices, at least 1. Throws BP_UNSUPPORTED with the reason: no driver, an old driver, or no device.
int count_devices(const Api& api);

// Describes how many pairs of devices lack peer access, so that NCCL uses host memory between them; empty: none.
std::string missing_peer_access(const Api& api, int count);

// Throw if the result is an error (for NCCL, in progress is none). `what` describes the call.
void check(const Api& api, cudaError_t result, const char* what);
void check(const Api& api, ncclResult_t result, const char* what, ncclComm_t comm = nullptr);

}  // namespace backplane::nccl
