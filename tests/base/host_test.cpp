// SPDX-License-Identifier: Apache-2.0
#include "backplane/base/host.hpp"

#include <gtest/gtest.h>

#include "support/descriptor_limit.hpp"

namespace backplane::base {
namespace {

TEST(HostIdentity, NamesTheBootAndTheNetworkNamespace) {
  const std::string boot = boot_id();
  EXPECT_EQ(boot.find_first_of("\n /"), std::string::npos) << boot;
  EXPECT_TRUE(host_identity().starts_with(boot + "/net:[")) << host_identity();
  EXPECT_EQ(host_identity(), host_identity());
  const test::DescriptorLimit none(0);
  EXPECT_EQ(host_identity(), "");
}

}  // namespace
}  // namespace backplane::base
