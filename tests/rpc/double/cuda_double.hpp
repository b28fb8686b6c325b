// SPDX-License-Identifier: Apache-2.0
//
// A test double of the CUDA driver: libcuda.so.1 with the functions that the plugin tensorpipe calls. Device memory is
// accessible through these functions only; a direct access faults. Asynchronous copies take effect when their stream is
// synchronized.
//
// BACKPLANE_DOUBLE_CUDA_DEVICES=N: the number of devices (default 2); 0: CUDA_ERROR_NO_DEVICE.
// BACKPLANE_DOUBLE_CUDA_WRONG=1: increments the first byte of each copy to a device.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Functions of the driver that tests call as the program. CUdeviceptr and CUcontext are pointers here.
int cuDeviceGetCount(int* count);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuMemAlloc_v2(void** data, size_t bytes);
int cuMemFree_v2(void* data);
int cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes);
int cuMemcpyHtoD_v2(void* to, const void* from, size_t bytes);
int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream);

// Makes calls of this function with this device's context return `result`, after `after` successful ones. Empty: none.
void cuda_double_fail(const char* function, int device, int result, int after);
// Blocks copies to the host (1), or lets them continue (0).
void cuda_double_hold(int holds);
// Waits up to 20 s until a copy is blocked. Returns 0 on timeout.
int cuda_double_holds_one();
// The allocations on this device, their bytes, and the references to its context.
uint64_t cuda_double_blocks(int device);
uint64_t cuda_double_bytes(int device);
int cuda_double_contexts(int device);
// The number of incorrect calls that the real driver might not report.
int cuda_double_violations();
}
