/* SPDX-License-Identifier: Apache-2.0
 *
 * The structs of DLPack 1.0 in capsules named "dltensor" and "dltensor_versioned".
 */
#include <stdint.h>

typedef struct {
  void* data;
  int32_t device_type; /* 1: host memory; 3: host memory that is pinned for CUDA */
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: C-contiguous */
  uint64_t byte_offset;
} py_dl_tensor;

typedef struct py_dl_managed {
  py_dl_tensor tensor;
  void* manager;
  void (*deleter)(struct py_dl_managed* self);
} py_dl_managed;

typedef struct py_dl_versioned {
  uint32_t major;
  uint32_t minor;
  void* manager;
  void (*deleter)(struct py_dl_versioned* self);
  uint64_t flags; /* 1: read-only; 2: a copy that was made for this export */
  py_dl_tensor tensor;
} py_dl_versioned;
