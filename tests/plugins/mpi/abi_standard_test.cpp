// SPDX-License-Identifier: Apache-2.0
//
// Our declarations beside the values that MPI 5.0 gives its handles. Each value has its name here, so that none is left
// out or out of place.
#include <cstddef>
#include <cstdint>

#include "abi.hpp"

namespace backplane::mpi {
namespace {

constexpr bool has(Predefined handle, intptr_t value) { return StandardAbi::handles.at(handle) == value; }

static_assert(has(kWorld, 0x101) && has(kSelf, 0x102) && has(kErrorsReturn, 0x142) && has(kRequestNull, 0x180));
static_assert(has(kByte, 0x247) && has(kInt8, 0x240) && has(kUint8, 0x241) && has(kInt16, 0x248));
static_assert(has(kUint16, 0x249) && has(kInt32, 0x250) && has(kUint32, 0x251) && has(kInt64, 0x258));
static_assert(has(kUint64, 0x259) && has(kFloat, 0x210) && has(kDouble, 0x214));
static_assert(has(kSum, 0x21) && has(kProd, 0x24) && has(kMin, 0x22) && has(kMax, 0x23));
static_assert(has(kBand, 0x28) && has(kBor, 0x29) && has(kBxor, 0x2a));

static_assert(sizeof(StandardAbi::Status) == 8 * sizeof(int));
static_assert(offsetof(StandardAbi::Status, source) == 0 && offsetof(StandardAbi::Status, tag) == sizeof(int));
static_assert(StandardAbi::any_source == -1 && StandardAbi::any_tag == -2 && StandardAbi::tag_ub == 501);
static_assert(StandardAbi::in_place == 1 && StandardAbi::thread_multiple == 4096);

}  // namespace
}  // namespace backplane::mpi
