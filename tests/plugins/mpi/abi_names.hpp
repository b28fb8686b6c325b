// SPDX-License-Identifier: Apache-2.0
//
// Compares the constants of plugins/mpi/abi.hpp with those of an mpi.h, which the including file has included.
#pragma once

#include <cstddef>

#include "abi.hpp"

// The handles, in the order of Predefined.
#define BACKPLANE_MPI_HANDLES                                                                                       \
  {                                                                                                                 \
    MPI_COMM_WORLD, MPI_COMM_SELF, MPI_ERRORS_RETURN, MPI_BYTE, MPI_INT8_T, MPI_UINT8_T, MPI_INT16_T, MPI_UINT16_T, \
        MPI_INT32_T, MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T, MPI_FLOAT, MPI_DOUBLE, MPI_SUM, MPI_PROD, MPI_MIN,    \
        MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_REQUEST_NULL                                                      \
  }

namespace backplane::mpi {

template <typename Abi>
constexpr bool agrees() {
  static_assert(Abi::any_source == MPI_ANY_SOURCE && Abi::any_tag == MPI_ANY_TAG);
  static_assert(Abi::tag_ub == MPI_TAG_UB);
  static_assert(Abi::thread_multiple == MPI_THREAD_MULTIPLE);
  static_assert(Abi::error_text_size >= MPI_MAX_ERROR_STRING);
  static_assert(Abi::version_text_size >= MPI_MAX_LIBRARY_VERSION_STRING);
  using Status = typename Abi::Status;
  static_assert(sizeof(Status) == sizeof(MPI_Status) && alignof(Status) == alignof(MPI_Status));
  static_assert(offsetof(Status, source) == offsetof(MPI_Status, MPI_SOURCE));
  static_assert(offsetof(Status, tag) == offsetof(MPI_Status, MPI_TAG));
  static_assert(offsetof(Status, error) == offsetof(MPI_Status, MPI_ERROR));
  return true;
}

}  // namespace backplane::mpi
