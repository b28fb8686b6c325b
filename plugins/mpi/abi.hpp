// SPDX-License-Identifier: Apache-2.0
//
// The three ABIs of MPI libraries: the types and constants that a compiled program depends on, as far as this plugin
// uses them. Sources: mpi.h of MPICH 4.0 and Open MPI 4.1, and that of the MPI Forum for MPI 5.0. tests/plugins/mpi
// compares them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace backplane::mpi {

// Predefined handles. Each ABI has a table in this order.
enum Predefined : size_t {
  kWorld,
  kSelf,
  kErrorsReturn,
  kByte,
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat,
  kDouble,
  kSum,
  kProd,
  kMin,
  kMax,
  kBand,
  kBor,
  kBxor,
  kRequestNull,
  kPredefinedCount
};

// A constant pointer of an ABI, such as MPI_IN_PLACE.
inline void* pointer_constant(intptr_t value) { return reinterpret_cast<void*>(value); }

// Handles as numbers and back.
template <typename Handle>
uintptr_t number_of(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<uintptr_t>(handle);
  } else {
    return static_cast<uint32_t>(handle);
  }
}
template <typename Handle>
Handle handle_of(uintptr_t number) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(number);
  } else {
    return static_cast<Handle>(static_cast<uint32_t>(number));
  }
}

// MPICH 3.1 to 4.x, Intel MPI, MVAPICH, Cray MPICH: handles are numbers (libmpi.so.12; Debian: libmpich.so.12).
struct MpichAbi {
  static constexpr const char* name = "MPICH";
  using Handle = int;
  struct Status {
    int count_lo;
    int count_hi_and_cancelled;
    int source;
    int tag;
    int error;
  };
  static constexpr std::array handles = std::to_array<Handle>(
      {0x44000000, 0x44000001, 0x54000001, 0x4c00010d, 0x4c000137, 0x4c00013b, 0x4c000238, 0x4c00023c,
       0x4c000439, 0x4c00043d, 0x4c00083a, 0x4c00083e, 0x4c00040a, 0x4c00080b, 0x58000003, 0x58000004,
       0x58000002, 0x58000001, 0x58000006, 0x58000008, 0x5800000a, 0x2c000000});
  static constexpr int any_source = -2;
  static constexpr int any_tag = -1;
  static constexpr int tag_ub = 0x64400001;
  static constexpr intptr_t in_place = -1;
  static constexpr int thread_multiple = 3;
  static constexpr int first_process_failure = -1;  // ULFM is not used
  static constexpr int last_process_failure = -1;
  static constexpr size_t error_text_size = 512;
  static constexpr size_t version_text_size = 8192;
};

// Open MPI 1.7 to 5.x: handles are the addresses of objects that the library exports (libmpi.so.40).
struct OpenMpiAbi {
  static constexpr const char* name = "Open MPI";
  using Handle = void*;
  struct Status {
    int source;
    int tag;
    int error;
    int cancelled;
    size_t bytes;
  };
  static constexpr std::array symbols = std::to_array<const char*>(
      {"ompi_mpi_comm_world", "ompi_mpi_comm_self", "ompi_mpi_errors_return", "ompi_mpi_byte",    "ompi_mpi_int8_t",
       "ompi_mpi_uint8_t",    "ompi_mpi_int16_t",   "ompi_mpi_uint16_t",      "ompi_mpi_int32_t", "ompi_mpi_uint32_t",
       "ompi_mpi_int64_t",    "ompi_mpi_uint64_t",  "ompi_mpi_float",         "ompi_mpi_double",  "ompi_mpi_op_sum",
       "ompi_mpi_op_prod",    "ompi_mpi_op_min",    "ompi_mpi_op_max",        "ompi_mpi_op_band", "ompi_mpi_op_bor",
       "ompi_mpi_op_bxor",    "ompi_request_null"});
  static constexpr int any_source = -1;
  static constexpr int any_tag = -1;
  static constexpr int tag_ub = 0;
  static constexpr intptr_t in_place = 1;
  static constexpr int thread_multiple = 3;
  static constexpr int first_process_failure = 75;  // MPI_ERR_PROC_FAILED, ..._PENDING, MPI_ERR_REVOKED of 5.0
  static constexpr int last_process_failure = 77;
  static constexpr size_t error_text_size = 256;
  static constexpr size_t version_text_size = 256;
};

// The standard ABI of MPI 5 (libmpi_abi.so): handles are pointers with standard values.
struct StandardAbi {
  static constexpr const char* name = "MPI 5";
  using Handle = void*;
  struct Status {
    int source;
    int tag;
    int error;
    int internal[5];
  };
  static constexpr std::array handles =
      std::to_array<intptr_t>({0x101, 0x102, 0x142, 0x247, 0x240, 0x241, 0x248, 0x249, 0x250, 0x251, 0x258,
                               0x259, 0x210, 0x214, 0x021, 0x024, 0x022, 0x023, 0x028, 0x029, 0x02a, 0x180});
  static constexpr int any_source = -1;
  static constexpr int any_tag = -2;
  static constexpr int tag_ub = 501;
  static constexpr intptr_t in_place = 1;
  static constexpr int thread_multiple = 4096;
  static constexpr int first_process_failure = -1;  // ULFM is not used
  static constexpr int last_process_failure = -1;
  static constexpr size_t error_text_size = 512;
  static constexpr size_t version_text_size = 8192;
};

// No table is short: missing entries would be 0.
static_assert(MpichAbi::handles.size() == kPredefinedCount && OpenMpiAbi::symbols.size() == kPredefinedCount &&
              StandardAbi::handles.size() == kPredefinedCount);

}  // namespace backplane::mpi
