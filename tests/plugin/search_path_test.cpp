// SPDX-License-Identifier: Apache-2.0
#include "plugin/search_path.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plugin/support.hpp"

namespace backplane::core::plugin {
namespace {

using test::ScopedVariable;

std::vector<std::string> paths(const SearchPath& path) {
  std::vector<std::string> result;
  for (const auto& directory : path.directories) result.push_back(directory.path);
  return result;
}

TEST(SearchPath, IsOrderedAndNamesOrigins) {
  const ScopedVariable list("BACKPLANE_PLUGIN_PATH", ":/a/one::/a/two/:/a/one:");
  const ScopedVariable xdg("XDG_DATA_HOME", "/xdg");
  const auto found = search_path(false);
  ASSERT_GE(found.directories.size(), 7U);
  const auto names = paths(found);
  EXPECT_EQ(names[0], "/a/one");
  EXPECT_EQ(names[1], "/a/two");
  EXPECT_EQ(names[2], "/xdg/backplane/plugins");
  EXPECT_EQ(found.directories[0].origin, "BACKPLANE_PLUGIN_PATH");
  EXPECT_EQ(found.directories[2].origin, "XDG_DATA_HOME");
  EXPECT_EQ(names.back(), "/usr/lib/backplane/plugins");
  const auto local = std::find(names.begin(), names.end(), "/usr/local/lib/backplane/plugins");
  EXPECT_NE(local, names.end());
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(SearchPath, KnowsTheDirectoriesBesideTheProgram) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto names = paths(search_path(true));
  ASSERT_GE(names.size(), 2U);
  EXPECT_EQ(names[0], (program / "backplane/plugins").string());
  EXPECT_EQ(names[1], (program.parent_path() / "lib/backplane/plugins").string());
}

TEST(SearchPath, FallsBackToHome) {
  const ScopedVariable list("BACKPLANE_PLUGIN_PATH", std::nullopt);
  const ScopedVariable home("HOME", "/home/me");
  for (const auto& xdg_value : std::vector<std::optional<std::string>>{std::nullopt, "", "relative"}) {
    const ScopedVariable xdg("XDG_DATA_HOME", xdg_value);
    EXPECT_EQ(paths(search_path(false)).front(), "/home/me/.local/share/backplane/plugins");
  }
  const ScopedVariable xdg("XDG_DATA_HOME", std::nullopt);
  const ScopedVariable homeless("HOME", std::nullopt);
  EXPECT_EQ(paths(search_path(false)), paths(search_path(true)));
}

TEST(SearchPath, MakesRelativeDirectoriesAbsolute) {
  const ScopedVariable list("BACKPLANE_PLUGIN_PATH", "here");
  EXPECT_EQ(paths(search_path(false)).front(), (std::filesystem::current_path() / "here").string());
}

TEST(SearchPath, SecureIgnoresTheEnvironment) {
  const ScopedVariable list("BACKPLANE_PLUGIN_PATH", "/evil");
  const ScopedVariable xdg("XDG_DATA_HOME", "/evil");
  const ScopedVariable unsafe("BACKPLANE_ALLOW_UNSAFE_PLUGINS", "1");
  const ScopedVariable deny("BACKPLANE_PLUGINS_DENY", "tcp");
  const auto found = search_path(true);
  for (const auto& name : paths(found)) EXPECT_FALSE(test::contains(name, "/evil")) << name;
  EXPECT_FALSE(found.policy.allow_unsafe);
  EXPECT_TRUE(found.policy.deny.empty());
  EXPECT_FALSE(runs_secure());
}

TEST(SearchPath, ReadsThePolicy) {
  const ScopedVariable unsafe("BACKPLANE_ALLOW_UNSAFE_PLUGINS", "1");
  const ScopedVariable allow("BACKPLANE_PLUGINS_ALLOW", "TCP, shm,,");
  const ScopedVariable deny("BACKPLANE_PLUGINS_DENY", "shm");
  const Policy policy = search_path(false).policy;
  EXPECT_TRUE(policy.allow_unsafe);
  EXPECT_EQ(policy.objection("tcp"), "");
  EXPECT_EQ(policy.objection("shm"), "denied by BACKPLANE_PLUGINS_DENY; remove it from that list");
  EXPECT_EQ(policy.objection("gloo"), "not named in BACKPLANE_PLUGINS_ALLOW; add it to the list or unset the variable");
  EXPECT_EQ(Policy{}.objection("gloo"), "");
}

}  // namespace
}  // namespace backplane::core::plugin
