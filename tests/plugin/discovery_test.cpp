// SPDX-License-Identifier: Apache-2.0
#include "plugin/discovery.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "backplane/abi/abi.h"
#include "plugin/loader.hpp"
#include "plugin/support.hpp"

namespace backplane::core::plugin {
namespace {

using BackendState = FoundBackend::State;
using DirectoryState = FoundDirectory::State;
using test::contains;
using test::path_of;

std::string why_not_found(const SearchPath& path, const char* id, int32_t status) {
  const Error error = test::error_of([&path, id] { find(path, id); });
  EXPECT_EQ(error.status(), status) << error.what();
  return error.what();
}

TEST(Discovery, ScansSortedAndSkipsOtherNames) {
  const test::TempDirectory temp;
  temp.copy("two", "backplane_two.so");
  temp.copy("good", "backplane_good.so");
  for (const char* other : {"libgood.so", "backplane_good.so.1", "backplane_.so", "readme"}) temp.copy("good", other);
  const Scan found = scan(path_of({temp.path().string()}));
  ASSERT_EQ(found.files.size(), 2U);
  EXPECT_EQ(found.files[0].path, temp.file("backplane_good.so"));
  EXPECT_EQ(found.files[0].rejection, "");
  EXPECT_EQ(found.files[1].backends.at(1).note.id, "second");
  EXPECT_EQ(found.files[1].backends[0].reason, "by " + temp.file("backplane_good.so"));
}

TEST(Discovery, OneBadFileNeverHidesTheNext) {
  const test::TempDirectory temp;
  temp.write("backplane_a.so", {});
  temp.directory("backplane_b.so");
  ASSERT_EQ(::mkfifo(temp.file("backplane_c.so").c_str(), 0600), 0);
  std::filesystem::create_symlink("nowhere", temp.file("backplane_d.so"));
  temp.copy("good", "backplane_good.so");
  const Scan found = scan(path_of({temp.path().string()}));
  ASSERT_EQ(found.files.size(), 5U);
  EXPECT_TRUE(contains(found.files[0].rejection, "it is empty"));
  EXPECT_TRUE(contains(found.files[1].rejection, "it is a directory"));
  EXPECT_TRUE(contains(found.files[2].rejection, "it is a FIFO, not a regular file"));
  EXPECT_TRUE(contains(found.files[3].rejection, "No such file"));
  EXPECT_EQ(found.files[4].backends.at(0).state, BackendState::kAvailable);
}

TEST(Discovery, RecordsDirectories) {
  const test::TempDirectory temp;
  temp.directory("real");
  temp.copy("good", "real/backplane_good.so");
  temp.copy("good", "file");
  std::filesystem::create_directory_symlink("real", temp.file("alias"));
  const Scan found = scan(path_of({temp.file("none"), temp.file("file"), temp.file("real"), temp.file("alias")}));
  ASSERT_EQ(found.directories.size(), 4U);
  EXPECT_EQ(found.directories[0].state, DirectoryState::kMissing);
  EXPECT_EQ(found.directories[1].state, DirectoryState::kUnreadable);
  EXPECT_EQ(found.directories[1].reason, "Not a directory");
  EXPECT_EQ(found.directories[2].state, DirectoryState::kRead);
  EXPECT_EQ(found.directories[3].state, DirectoryState::kRepeated);
  EXPECT_EQ(found.directories[3].reason, temp.file("real"));
  EXPECT_EQ(found.files.size(), 1U);
}

TEST(Discovery, TheFirstDirectoryWinsAndABrokenFileDoesNot) {
  const test::TempDirectory temp;
  for (const char* name : {"broken", "first", "last"}) temp.directory(name);
  temp.write("broken/backplane_good.so", {});
  temp.copy("good", "first/backplane_good.so");
  temp.copy("good", "last/backplane_good.so");
  const auto path = path_of({temp.file("broken"), temp.file("first"), temp.file("last")});
  EXPECT_EQ(find(path, "good").path, temp.file("first/backplane_good.so"));
  const Scan found = scan(path);
  EXPECT_EQ(found.files[1].backends.at(0).state, BackendState::kAvailable);
  EXPECT_EQ(found.files[2].backends.at(0).state, BackendState::kShadowed);
  EXPECT_EQ(found.files[2].backends[0].reason, "by " + temp.file("first/backplane_good.so"));
}

TEST(Discovery, AFileNamedAfterTheBackendComesBeforeOthers) {
  const test::TempDirectory temp;
  temp.directory("a");
  temp.directory("b");
  temp.copy("two", "a/backplane_two.so");
  const auto path = path_of({temp.file("a"), temp.file("b")});
  const Match inside = find(path, "second");
  EXPECT_EQ(inside.path, temp.file("a/backplane_two.so"));
  EXPECT_EQ(inside.index, 1);
  EXPECT_EQ(find(path, "good").path, inside.path);
  temp.copy("good", "b/backplane_good.so");
  EXPECT_EQ(find(path, "good").path, temp.file("b/backplane_good.so"));
  const Scan found = scan(path);
  EXPECT_EQ(found.files[0].backends.at(0).state, BackendState::kShadowed);
  EXPECT_EQ(found.files[0].backends.at(1).state, BackendState::kAvailable);
}

TEST(Discovery, ReportsWhyNothingWasFound) {
  const test::TempDirectory temp;
  const auto path = path_of({temp.path().string(), temp.file("none")});
  EXPECT_EQ(why_not_found(path, "good", BP_INVALID), "no plugin for backend 'good'; looked in " + temp.path().string() +
                                                         ", " + temp.file("none") + " (missing)");
  temp.copy("good", "backplane_acme.so");
  EXPECT_TRUE(contains(why_not_found(path, "acme", BP_UNSUPPORTED), "backplane_acme.so: it has no backend 'acme'"));
  temp.write("backplane_broken.so", {});
  EXPECT_TRUE(contains(why_not_found(path, "broken", BP_UNSUPPORTED), "backplane_broken.so: it is empty"));
  EXPECT_TRUE(contains(why_not_found(path, "acm", BP_INVALID), "1 other plugin files were rejected"));
  for (const char* id : {"../x", "", "Good", "a\nb"}) {
    EXPECT_TRUE(contains(why_not_found(path, id, BP_INVALID), "is not a valid backend name"));
  }
}

TEST(Discovery, SeesAFileCopiedLater) {
  const test::TempDirectory temp;
  const auto path = path_of({temp.path().string()});
  EXPECT_TRUE(scan(path).files.empty());
  why_not_found(path, "good", BP_INVALID);
  temp.copy("good", "backplane_good.so");
  EXPECT_EQ(scan(path).files.size(), 1U);
  EXPECT_EQ(find(path, "good").index, 0);
}

TEST(Discovery, AllowsAndDeniesById) {
  const test::TempDirectory temp;
  temp.copy("two", "backplane_two.so");
  auto path = path_of({temp.path().string()});
  path.policy.deny = {"second"};
  const Scan found = scan(path);
  EXPECT_EQ(found.files[0].backends.at(0).state, BackendState::kAvailable);
  EXPECT_EQ(found.files[0].backends.at(1).state, BackendState::kDenied);
  EXPECT_EQ(found.files[0].backends[1].reason, "denied by BACKPLANE_PLUGINS_DENY; remove it from that list");
  EXPECT_TRUE(contains(why_not_found(path, "second", BP_UNSUPPORTED), "denied by"));
  path.policy.allow = {"other"};
  EXPECT_TRUE(contains(why_not_found(path, "good", BP_UNSUPPORTED), "not named in BACKPLANE_PLUGINS_ALLOW"));
}

TEST(Discovery, PermissionsCount) {
  const test::TempDirectory temp;
  ::chmod(temp.copy("good", "backplane_good.so").c_str(), 0666);
  auto path = path_of({temp.path().string()});
  EXPECT_TRUE(contains(scan(path).files.at(0).rejection, "writable by others"));
  EXPECT_TRUE(contains(why_not_found(path, "good", BP_UNSUPPORTED), "writable by others"));
  path.policy.allow_unsafe = true;
  EXPECT_EQ(scan(path).files.at(0).rejection, "");
}

TEST(Discovery, RunsNoCodeWhileLoadingDoes) {
  const test::TempDirectory temp;
  const test::ScopedVariable trace("BACKPLANE_TEST_TRACE", temp.file("trace"));
  temp.copy("trace", "backplane_good.so");
  const auto path = path_of({temp.path().string()});
  EXPECT_EQ(scan(path).files.size(), 1U);
  const Match match = find(path, "good");
  EXPECT_FALSE(std::filesystem::exists(temp.file("trace")));
  load(match.path, match.note);
  EXPECT_TRUE(std::filesystem::exists(temp.file("trace")));
}

}  // namespace
}  // namespace backplane::core::plugin
