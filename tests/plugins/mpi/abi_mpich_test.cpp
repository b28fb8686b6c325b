// SPDX-License-Identifier: Apache-2.0
//
// Our declarations beside those of MPICH's mpi.h.
#include <gtest/gtest.h>
#include <mpi.h>

#include "abi_names.hpp"

namespace backplane::mpi {
namespace {

static_assert(agrees<MpichAbi>());
static_assert(MPI_SUCCESS == 0);
static_assert(std::is_same_v<MPI_Comm, MpichAbi::Handle> && std::is_same_v<MPI_Request, MpichAbi::Handle> &&
              std::is_same_v<MPI_Message, MpichAbi::Handle> && std::is_same_v<MPI_Datatype, MpichAbi::Handle>);

TEST(MpiAbiTest, HandlesOfMpich) {
  constexpr std::array<int, kPredefinedCount> kHandles = BACKPLANE_MPI_HANDLES;
  EXPECT_EQ(kHandles, MpichAbi::handles);
  EXPECT_EQ(MPI_IN_PLACE, pointer_constant(MpichAbi::in_place));
}

}  // namespace
}  // namespace backplane::mpi
