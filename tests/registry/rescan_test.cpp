// SPDX-License-Identifier: Apache-2.0
//
// A plugin that is copied into a directory of the search path while the program runs.
#include <filesystem>

#include "support/environment.hpp"
#include "support/groups.hpp"

namespace backplane::test {
namespace {

TEST(RescanTest, APluginDroppedInWhileTheProgramRunsIsUsableByName) {
  const ScopedDirectory directory;
  const ScopedVariable path("BACKPLANE_PLUGIN_PATH", directory.path().string());
  EXPECT_FALSE(backend_registered("toy"));
  EXPECT_EQ(failure_of([] { backend_type("toy"); }), Status::kInvalid);

  std::filesystem::copy_file(TOY_PLUGIN, directory.path() / "backplane_toy.so");
  rescan();
  EXPECT_TRUE(backend_registered("toy"));
  EXPECT_EQ(backend_type("toy").repr(), "BackendType.TOY");
  in_group("toy?sndbuf=64K", 3, [](ProcessGroup& group) {
    std::vector<double> data(10000, 1.5);
    group.all_reduce(data);  // completed by the core over the plugin's sends and receives
    EXPECT_EQ(data[9999], 4.5);
  });
}

}  // namespace
}  // namespace backplane::test
