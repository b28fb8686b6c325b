// SPDX-License-Identifier: Apache-2.0
#include "plugin/loader.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "plugin/contract.hpp"
#include "plugin/plugin_file.hpp"
#include "plugin/support.hpp"

namespace backplane::core::plugin {
namespace {

using test::contains;

const bp_plugin* load_path(const std::string& path) { return load(path, read_plugin_file(path, false)); }

// Loads a fixture, which must fail with `status`. Returns the text between the path and the remedy.
std::string failure(const std::string& fixture, int32_t status) {
  const test::TempDirectory temp;
  const auto path = temp.copy(fixture, "backplane_" + fixture + ".so");
  const Error error = test::error_of([&path] { load_path(path); });
  EXPECT_EQ(error.status(), status) << error.what();
  const std::string text = error.what();
  EXPECT_TRUE(text.starts_with(path + ": ")) << text;
  const size_t remedy = text.rfind("; ");
  if (remedy == std::string::npos || remedy < path.size() + 2) {
    ADD_FAILURE() << "nothing says what to do: " << text;
    return "";
  }
  return text.substr(path.size() + 2, remedy - path.size() - 2);
}

TEST(Loader, LoadsOnce) {
  const test::TempDirectory temp;
  const auto path = temp.copy("two", "backplane_two.so");
  const bp_plugin* plugin = load_path(path);
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->backend_count, 2U);
  EXPECT_STREQ(plugin->backends[1]->id, "second");
  EXPECT_EQ(load_path(path), plugin);
  std::filesystem::create_symlink(path, temp.file("backplane_link.so"));
  EXPECT_EQ(load_path(temp.file("backplane_link.so")), plugin);
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(plugin->backends[0]->init(plugin->backends[0], nullptr, nullptr, &err), BP_UNSUPPORTED);
}

TEST(Loader, TwoCopiesAreTwoPlugins) {
  const test::TempDirectory temp;
  EXPECT_NE(load_path(temp.copy("good", "backplane_a.so")), load_path(temp.copy("good", "backplane_b.so")));
}

TEST(Loader, IsThreadSafe) {
  const test::TempDirectory temp;
  const auto path = temp.copy("good", "backplane_good.so");
  std::vector<const bp_plugin*> seen(8, nullptr);
  {
    std::vector<std::jthread> threads;
    for (auto& slot : seen) threads.emplace_back([&slot, &path] { slot = load_path(path); });
  }
  ASSERT_NE(seen[0], nullptr);
  for (const auto* plugin : seen) EXPECT_EQ(plugin, seen[0]);
}

TEST(Loader, AcceptsALargerStruct) {
  const test::TempDirectory temp;
  const bp_plugin* const plugin = load_path(temp.copy("struct_long", "backplane_good.so"));
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->struct_size, sizeof(bp_plugin) + 64);
}

TEST(Loader, ReportsTheTextOfTheDynamicLoader) {
  const std::string text = failure("unresolved", BP_UNSUPPORTED);
  EXPECT_TRUE(contains(text, "it cannot be loaded: ")) << text;
  EXPECT_TRUE(contains(text, "undefined symbol: backplane_test_symbol_that_nobody_defines")) << text;
}

TEST(Loader, NamesAMissingLibrary) {
  // The name of a needed library is changed in place; the good fixture needs the C library at least.
  const test::TempDirectory temp;
  auto bytes = test::read_file(test::fixture("trace.so"));
  constexpr std::string_view kName = "libc.so.6";
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t at = text.find(kName);
  ASSERT_NE(at, std::string_view::npos);
  std::memcpy(bytes.data() + at, "libz.so.0", kName.size());
  const auto path = temp.write("backplane_good.so", bytes);
  const Error error = test::error_of([&path] { load_path(path); });
  EXPECT_EQ(error.status(), BP_UNSUPPORTED);
  EXPECT_TRUE(contains(error.what(), "libz.so.0: cannot open shared object file")) << error.what();
}

TEST(Loader, RefusesABrokenEntry) {
  EXPECT_EQ(failure("no_entry", BP_INTERNAL), "it does not export bp_plugin_v1");
  EXPECT_EQ(failure("function_entry", BP_INTERNAL), "its bp_plugin_v1 is a function");
  EXPECT_EQ(failure("bad_magic", BP_INTERNAL), "its bp_plugin_v1 has the magic number 0x00001234, not 0x314b5042");
  EXPECT_EQ(failure("struct_short", BP_INTERNAL), "its bp_plugin_v1 has a struct_size of 16, too small for ABI 1.0");
  EXPECT_EQ(failure("needs_newer", BP_UNSUPPORTED), "it needs a core with ABI 1.7, this one has 1.0");
  EXPECT_EQ(failure("null_table", BP_INTERNAL), "its table of backends is NULL");
  EXPECT_EQ(failure("null_init", BP_INTERNAL), "backend 'good' has no init function");
}

TEST(Loader, RefusesAPluginThatDisagreesWithItsNote) {
  EXPECT_EQ(failure("other_version", BP_INTERNAL), "its note says backend 'good' has version 1.0, its code says 1.1");
  EXPECT_EQ(failure("other_kinds", BP_INTERNAL), "its note says backend 'good' has kinds 1, its code says 2");
  EXPECT_EQ(failure("other_flags", BP_INTERNAL), "its note says backend 'good' has flags 1, its code says 0");
  EXPECT_EQ(failure("other_ops", BP_INTERNAL),
            "its note says backend 'good' has operations 49152, its code says 16384");
}

TEST(Loader, RefusesABrokenOptionSchema) {
  EXPECT_EQ(failure("bad_default", BP_INTERNAL),
            "backend 'good': option 'threads' has the default '65', which is not between 1 and 64");
  EXPECT_EQ(failure("duplicate_option", BP_INTERNAL), "backend 'good': option 'threads' is there twice");
}

TEST(Loader, RefusesAFileThatChangedAfterTheCheck) {
  const test::TempDirectory temp;
  const auto path = temp.copy("good", "backplane_good.so");
  const Note note = read_plugin_file(path, false);
  std::filesystem::rename(temp.copy("two", "other"), path);
  EXPECT_TRUE(contains(test::error_of([&] { load(path, note); }).what(), "changed after it was checked"));
  std::filesystem::remove(path);
  EXPECT_TRUE(contains(test::error_of([&] { load(path, note); }).what(), "changed after it was checked"));
}

TEST(Loader, RefusesAFileThatReplacesALoadedOne) {
  const test::TempDirectory temp;
  const auto path = temp.copy("good", "backplane_good.so");
  load_path(path);
  std::filesystem::rename(temp.copy("two", "other"), path);
  const Error error = test::error_of([&path] { load_path(path); });
  EXPECT_EQ(error.status(), BP_INVALID);
  EXPECT_TRUE(contains(error.what(), "restart the program")) << error.what();
}

// A descriptor in memory that each case breaks in one place.
struct Descriptor {
  bp_capability send = {sizeof(bp_capability), BP_SEND, 1, 0, 1};
  const bp_capability* capabilities[1] = {&send};
  bp_backend backend{};
  const bp_backend* backends[1] = {&backend};
  bp_plugin plugin{sizeof(bp_plugin), BP_MAGIC, BP_ABI_MINOR, 0, "tests", backends, 1, 0};
  Note note{BP_ABI_MINOR, 0, {{"x", "1", BP_KIND_LAYER, 0, BP_BIT(BP_SEND)}}, {}};

  Descriptor() {
    backend.struct_size = sizeof backend;
    backend.kinds = BP_KIND_LAYER;
    backend.id = "x";
    backend.version = "1";
    backend.summary = "one";
    backend.capabilities = capabilities;
    backend.capability_count = 1;
    backend.init = [](const bp_backend*, const bp_init*, bp_agent*, bp_error*) { return int32_t{BP_OK}; };
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

TEST(Contract, ChecksEveryPart) {
  const Descriptor good;
  EXPECT_NO_THROW(check_contract(good.plugin, good.note));
  const std::pair<const char*, void (*)(Descriptor&)> cases[] = {
      {"its vendor is NULL", [](Descriptor& d) { d.plugin.vendor = nullptr; }},
      {"it has no backends", [](Descriptor& d) { d.plugin.backend_count = 0; }},
      {"its backend 0 is NULL", [](Descriptor& d) { d.backends[0] = nullptr; }},
      {"a number of backends of 1, its code says 9", [](Descriptor& d) { d.plugin.backend_count = 9; }},
      {"built for ABI minor 3", [](Descriptor& d) { d.note.built_minor = 3; }},
      {"backend 'x' has a struct_size of 40", [](Descriptor& d) { d.backend.struct_size = 40; }},
      {"the id of backend 'x' is NULL", [](Descriptor& d) { d.backend.id = nullptr; }},
      {"says backend x, its code says y", [](Descriptor& d) { d.backend.id = "y"; }},
      {"the version or summary", [](Descriptor& d) { d.backend.summary = "\xff"; }},
      {"only one of construct_options", [](Descriptor& d) { d.backend.destroy_options = [](auto*, auto*) {}; }},
      {"table of capabilities of backend 'x' is NULL", [](Descriptor& d) { d.backend.capabilities = nullptr; }},
      {"capability 0 of backend 'x' is NULL", [](Descriptor& d) { d.capabilities[0] = nullptr; }},
      {"capability 0 of backend 'x' has a struct_size of 8", [](Descriptor& d) { d.send.struct_size = 8; }},
      {"unknown operation 18", [](Descriptor& d) { d.send.op = BP_OP_COUNT; }},
      {"lists no dtypes", [](Descriptor& d) { d.send.dtypes = 0; }},
      {"4294967295 capabilities", [](Descriptor& d) { d.backend.capability_count = 0xFFFFFFFF; }},
      {"its table of options is NULL", [](Descriptor& d) { d.backend.option_count = 1; }},
  };
  for (const auto& [expected, change] : cases) {
    Descriptor broken;
    change(broken);
    const Error error = test::error_of([&broken] { check_contract(broken.plugin, broken.note); });
    EXPECT_TRUE(contains(error.what(), expected)) << "expected '" << expected << "', got '" << error.what() << "'";
  }
}

TEST(Contract, LeavesANewerPluginItsOperations) {
  Descriptor newer;
  newer.plugin.built_minor = newer.note.built_minor = BP_ABI_MINOR + 1;
  newer.send.op = 40;
  newer.note.backends[0].ops = BP_BIT(40);
  EXPECT_NO_THROW(check_contract(newer.plugin, newer.note));
}

}  // namespace
}  // namespace backplane::core::plugin
