// SPDX-License-Identifier: Apache-2.0
//
// A double of CUDA's driver, for machines without one: libcuda.so.1 with the functions that the plugin tensorpipe
// calls. The memory of its devices can be reached through these functions alone: to touch it faults. What is copied to
// a device comes there when its stream is waited for.
//
// BACKPLANE_DOUBLE_CUDA_DEVICES=N: how many devices there are (2); 0: the driver says so.
// BACKPLANE_DOUBLE_CUDA_WRONG=1: what is copied to a device has its first byte increased.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// The driver's own, for tests that play the program. CUdeviceptr and CUcontext are pointers here.
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

// From now on calls of this function with this device's context return `result`, after so many that do not. Empty:
// none.
void cuda_double_fail(const char* function, int device, int result, int after);
// From now on copies to the host wait (1), or go on.
void cuda_double_hold(int holds);
// Waits until a copy is held; 0: none is, after 20 s.
int cuda_double_holds_one();
// What is there now: blocks of memory on this device, their bytes, and how often its context is held.
uint64_t cuda_double_blocks(int device);
uint64_t cuda_double_bytes(int device);
int cuda_double_contexts(int device);
// How many calls broke the driver's rules, in a way that it would not notice.
int cuda_double_violations();
}
