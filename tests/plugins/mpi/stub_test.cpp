// SPDX-License-Identifier: Apache-2.0
//
// Groups over the stub of MPI, which sanitizers see through. Each rank is a process.
#include "stub_job.hpp"

namespace backplane::test {
namespace {

class MpiStubTest : public testing::TestWithParam<int> {
 protected:
  StubJob job_{BACKPLANE_TEST_COMMAND};
};

TEST_P(MpiStubTest, Operations) { job_.expect_passed(GetParam(), "world"); }

TEST_P(MpiStubTest, CollectivesOfTheCoreOverMessages) { job_.expect_passed(GetParam(), "messages"); }

TEST_P(MpiStubTest, OperationsOnTheProgramsMemory) { job_.expect_passed(GetParam(), "direct"); }

// Also of numbers of ranks that are no power of two.
TEST(MpiStubExchangeTest, SmallAllReduces) {
  for (const int ranks : {1, 2, 4, 5, 7}) StubJob(BACKPLANE_TEST_COMMAND).expect_passed(ranks, "all_reduces");
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiStubTest, testing::Values(2, 3), testing::PrintToStringParamName());

}  // namespace
}  // namespace backplane::test
