// SPDX-License-Identifier: Apache-2.0
//
// The collectives of MPI 4 for large counts. MPI_Count and MPI_Aint have 64 bits.
#include <cstdint>

using Count = int64_t;
#define STUB_SUFFIXED(name) name##_c
#include "collectives.cpp"
