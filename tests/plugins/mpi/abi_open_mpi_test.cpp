// SPDX-License-Identifier: Apache-2.0
//
// Our declarations beside those of Open MPI's mpi.h, whose handles are the addresses of objects.
#define OMPI_SKIP_MPICXX 1
#include <gtest/gtest.h>
#include <mpi.h>

#include <string>

#include "abi_names.hpp"

#define BACKPLANE_TEXT(...) #__VA_ARGS__
#define BACKPLANE_EXPANDED(...) BACKPLANE_TEXT(__VA_ARGS__)

namespace backplane::mpi {
namespace {

static_assert(agrees<OpenMpiAbi>());
static_assert(MPI_SUCCESS == 0);
static_assert(std::is_pointer_v<MPI_Comm> && std::is_pointer_v<MPI_Request> && std::is_pointer_v<MPI_Message>);

TEST(MpiAbiTest, HandlesOfOpenMpi) {
  const std::string expanded = BACKPLANE_EXPANDED(BACKPLANE_MPI_HANDLES);
  size_t position = 0;
  for (const char* symbol : OpenMpiAbi::symbols) {
    const size_t found = expanded.find("&(" + std::string(symbol) + ")", position);
    ASSERT_NE(found, std::string::npos) << symbol << " in " << expanded;
    EXPECT_EQ(expanded.find('&', position), found) << symbol;
    position = found + 1;
  }
  EXPECT_EQ(expanded.find('&', position), std::string::npos);
  EXPECT_EQ(MPI_IN_PLACE, pointer_constant(OpenMpiAbi::in_place));
}

}  // namespace
}  // namespace backplane::mpi
