// SPDX-License-Identifier: Apache-2.0
#include "group/agent.hpp"

#include <gtest/gtest.h>

namespace backplane::core {
namespace {

constexpr uint64_t kSmall = 1 << 20;
constexpr uint64_t kLarge = 64 << 20;

TEST(Workspace, KeepsSmallScratch) {
  Workspace workspace;
  const std::byte* const scratch = workspace.scratch(kSmall);
  workspace.trim();
  EXPECT_EQ(workspace.scratch(kSmall), scratch);
  EXPECT_EQ(workspace.scratch(0), scratch);
  EXPECT_EQ(workspace.scratch_size(), kSmall);
}

// Programs alternate large and small collectives.
TEST(Workspace, KeepsSmallScratchBesideLarge) {
  Workspace workspace;
  const std::byte* const scratch = workspace.scratch(kSmall);
  EXPECT_NE(workspace.scratch(kLarge), scratch);
  workspace.trim();
  EXPECT_EQ(workspace.scratch_size(), kSmall);
  EXPECT_EQ(workspace.scratch(kSmall), scratch);
}

TEST(Workspace, KeepsNoLargeScratch) {
  Workspace workspace;
  workspace.scratch(kLarge);
  workspace.trim();
  EXPECT_EQ(workspace.scratch_size(), 0U);
}

}  // namespace
}  // namespace backplane::core
