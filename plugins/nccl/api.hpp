// SPDX-License-Identifier: Apache-2.0
//
// The two tables through which every call into NCCL and CUDA goes: the plugin's only seam.
//
// NCCL is a library opened at run time and never closed. The CUDA runtime is linked statically into the plugin (it
// looks for the driver at its first call), unless the NCCL library comes with a runtime of its own, which then is the
// one that knows its streams.
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
  // Null where the library is too old.
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  decltype(&ncclCommRegister) comm_register = nullptr;
  decltype(&ncclCommDeregister) comm_deregister = nullptr;
  ncclResult_t (*all_to_all)(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                             cudaStream_t stream) = nullptr;  // ncclAlltoAll, which older headers lack
};

// The C functions; some have C++ overloads of the same name.
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
  // Of tools/gpu/nccl_launch_cost.cpp alone. Null where the library's runtime lacks them.
  cudaError_t (*launch_host_func)(cudaStream_t, cudaHostFn_t, void*) = nullptr;
  cudaError_t (*mem_get_info)(size_t*, size_t*) = nullptr;
};

struct Api {
  NcclTable nccl;
  CudaTable cuda;
  std::string library;   // as it was asked for
  int nccl_version = 0;  // 22809
};

// "2.28.9"
std::string nccl_version_text(int code);

// The tables of this library: a path, or a name for the loader; empty: BACKPLANE_NCCL_LIBRARY, else libnccl.so.2.
// Opened once per process and name. Throws BP_UNSUPPORTED, saying what is missing. Any thread; blocks while the file is
// loaded.
const Api& open_api(const std::string& library);

// How many devices there are. Throws BP_UNSUPPORTED with the exact reason: no driver, one that is too old, no device.
int count_devices(const Api& api);

// What people should know of these devices: which of them do not reach each other's memory, so that NCCL, which serves
// them all the same, goes through the host's. Empty: nothing.
std::string remark_on_devices(const Api& api, int count);

// Throw what the libraries answer, unless it is success (NCCL: or "in progress"). `what` is what was tried.
void check(const Api& api, cudaError_t result, const char* what);
void check(const Api& api, ncclResult_t result, const char* what, ncclComm_t comm = nullptr);

}  // namespace backplane::nccl
