// SPDX-License-Identifier: Apache-2.0
//
// The malformed corpus: a directory of invalid plugin files, with a valid one at the beginning and at the end. Each is
// rejected with its own reason. None crashes the command or hides another file.
#include <elf.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "backplane/abi/abi.h"
#include "tools/command.hpp"

namespace backplane::test {
namespace {

using Json = nlohmann::json;

// The bytes of a sound plugin, with its parts by name.
class Image {
 public:
  explicit Image(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
    if (bytes.size() < sizeof(Elf64_Ehdr)) throw std::runtime_error(fmt::format("cannot read {}", path.string()));
  }

  Elf64_Ehdr& header() { return at<Elf64_Ehdr>(0); }
  bp_note_header& note() { return at<bp_note_header>(find_note()); }
  bp_note_backend& backend() { return at<bp_note_backend>(find_note() + sizeof(bp_note_header)); }

  std::string bytes;

 private:
  template <typename T>
  T& at(size_t offset) {
    return *reinterpret_cast<T*>(bytes.data() + offset);
  }
  size_t find_note() const {
    const size_t at = bytes.find(std::string_view("Backplane\0\0", 12));
    if (at == std::string::npos) throw std::runtime_error("there is no note");
    return at - offsetof(bp_note_header, name);
  }
};

struct Case {
  const char* name;      // of the file, between backplane_ and .so
  const char* expected;  // a part of the reason
  const char* remedy;    // a part of what to do about it
};

struct Made {
  Case about;
  std::function<void(Image&)> change;
};

// Invalid in a way that is detected without running code. Made from a valid file.
const Made kMade[] = {
    {{"empty", "it is empty", "copy it here again"}, [](Image& i) { i.bytes.clear(); }},
    {{"text", "it is not an ELF file", "move or rename it"}, [](Image& i) { i.bytes = "#!/bin/sh\nexit 0\n"; }},
    {{"truncated_header", "ends inside its ELF header", "copy it here again"}, [](Image& i) { i.bytes.resize(40); }},
    {{"truncated_segment", "does not fit into the file's", "copy it here again"},
     [](Image& i) { i.bytes.resize(i.bytes.size() / 3); }},
    {{"bits_32", "it is a 32-bit file", "build it for this machine"},
     [](Image& i) { i.header().e_ident[EI_CLASS] = ELFCLASS32; }},
    {{"other_machine", "it is for another machine", "build it for this machine"},
     [](Image& i) { i.header().e_machine = EM_S390; }},
    {{"big_endian", "it is a big-endian file", "build it for this machine"},
     [](Image& i) { i.header().e_ident[EI_DATA] = ELFDATA2MSB; }},
    {{"fixed_executable", "it is an executable", "move or rename it"}, [](Image& i) { i.header().e_type = ET_EXEC; }},
    {{"note_magic", "its note has the magic number", "remove or update this plugin"},
     [](Image& i) { i.note().magic = 7; }},
    {{"abi_too_old", "it is built for ABI 0.0, this core has ABI 1.", "build it with the headers of this core"},
     [](Image& i) { i.note().abi_major = 0; }},
    {{"abi_too_new", "it is built for ABI 2.0, this core has ABI 1.", "use a newer Backplane"},
     [](Image& i) { i.note().abi_major = 2; }},
    {{"needs_newer", "it needs a core with ABI 1.77", "use a newer Backplane"},
     [](Image& i) { i.note().need_minor = i.note().built_minor = 77; }},
    {{"needs_extension", "it needs the extension acme.onesided/1, which this core does not have",
      "use a newer Backplane"},
     [](Image& i) { std::strcpy(i.note().needs, "backplane.reduce/1 acme.onesided/1"); }},
    {{"needs_malformed", "the extensions that it needs are not well-formed", "remove or update this plugin"},
     [](Image& i) { std::strcpy(i.note().needs, "backplane.reduce/1  backplane.rpc/1"); }},
    {{"needs_unterminated", "the list of extensions in its note is not terminated", "remove or update this plugin"},
     [](Image& i) { std::memset(i.note().needs, 'a', sizeof i.note().needs); }},
    {{"bad_id", "'Sound', which is not a valid id", "remove or update this plugin"},
     [](Image& i) { i.backend().id[0] = 'S'; }},
};

// The rest of that kind.
const Case kRejected[] = {
    {"directory", "it is a directory", "move or rename it"},
    {"fifo", "it is a FIFO", "move or rename it"},
    {"executable", "it is a position-independent executable", "move or rename it"},
    {"no_note", "it has no .note.backplane note", "move or rename it"},
    {"duplicate_note", "it has 2 .note.backplane notes", "remove or update this plugin"},
};

// Invalid once it is loaded, which happens in a child process.
const Case kBrokenCode[] = {
    {"missing_library", "libbackplane_test_missing.so: cannot open shared object file", "install what is missing"},
    {"unresolved", "undefined symbol: backplane_test_symbol_that_nobody_defines", "install what is missing"},
    {"note_disagrees", "its note says", "remove or update this plugin"},
    {"no_entry", "it does not export bp_plugin_v1", "remove or update this plugin"},
    {"null_table", "its table of backends is NULL", "remove or update this plugin"},
    {"bad_magic", "its bp_plugin_v1 has the magic number 0x00001234", "remove or update this plugin"},
    {"null_function", "has no init function", "remove or update this plugin"},
    {"crashes", "crashed with SIGSEGV", "remove or update this plugin"},
    {"exits", "ended the process with exit code 0", "remove or update this plugin"},
    {"hangs", "did not answer within", "remove or update this plugin"},
    {"throws", "crashed with SIGABRT", "remove or update this plugin"},
};

std::string replaced(std::string text, const std::string& what) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what)) text.replace(at, what.size(), "*");
  return text;
}

class Corpus : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::permissions(place_.file(""), fs::perms(0755));
    for (const Made& made : kMade) {
      Image image(fixture("sound"));
      made.change(image);
      std::ofstream(file(made.about.name), std::ios::binary) << image.bytes;
    }
    fs::create_directory(file("directory"));
    ASSERT_EQ(::mkfifo(file("fifo").c_str(), 0644), 0);
    fs::copy_file(fs::path(BACKPLANE_TEST_PLUGIN_FIXTURES) / "plugin_test_executable", file("executable"));
    for (const char* name : {"no_note", "duplicate_note", "zz_sound"}) fs::copy_file(fixture(name), file(name));
    fs::copy_file(fixture("sound"), file("sound"));
    for (const Case& broken : kBrokenCode) fs::copy_file(fixture(broken.name), file(broken.name));
    for (const auto& entry : fs::directory_iterator(place_.file(""))) {
      if (entry.is_regular_file()) fs::permissions(entry.path(), fs::perms(0644));
    }
  }

  static fs::path fixture(const std::string& name) {
    return fs::path(BACKPLANE_TEST_PLUGIN_FIXTURES) / fmt::format("corpus_{}.so", name);
  }
  std::string file(const std::string& name) const { return place_.file(fmt::format("backplane_{}.so", name)); }

  Json list(std::vector<std::string> more) const {
    std::vector<std::string> words = {"list", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words, {{{"BACKPLANE_PLUGIN_PATH", place_.file("")}}});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }

  // Reasons that differ only in the file name count as equal.
  void expect_reason(const Case& about, const std::string& reason) {
    EXPECT_TRUE(contains(reason, about.expected)) << about.name << ": '" << reason << "'";
    EXPECT_TRUE(contains(reason, std::string("; "))) << about.name << ": '" << reason << "'";
    EXPECT_TRUE(contains(reason.substr(reason.rfind("; ")), about.remedy)) << about.name << ": '" << reason << "'";
    EXPECT_EQ(reason.find('\n'), std::string::npos) << reason;
    const std::string bare = replaced(replaced(reason, file(about.name)), fmt::format("'{}'", about.name));
    EXPECT_TRUE(reasons_.insert(bare).second) << about.name << " has the reason of another: " << bare;
  }

  ScopedDirectory place_;
  std::set<std::string> reasons_;
};

TEST_F(Corpus, EachFileIsRejectedWithItsOwnReason) {
  const Json result = list({"--probe", "--probe-timeout", "5"});
  std::map<std::string, std::string> rejected;
  for (const Json& each : result["rejected"]) rejected[each["file"]] = each["reason"];
  for (const Made& made : kMade) expect_reason(made.about, rejected[file(made.about.name)]);
  for (const Case& about : kRejected) expect_reason(about, rejected[file(about.name)]);
  EXPECT_EQ(rejected.size(), std::size(kMade) + std::size(kRejected));

  std::map<std::string, Json> backends;
  for (const Json& each : result["backends"]) backends[each["id"]] = each;
  for (const Case& about : kBrokenCode) {
    EXPECT_EQ(backends[about.name]["viable"], false) << about.name;
    expect_reason(about, backends[about.name].value("viability", ""));
  }
  // No file hides the files before it or after it.
  for (const char* good : {"sound", "zz_sound"}) {
    EXPECT_EQ(backends[good]["viable"], true) << backends[good];
    EXPECT_EQ(backends[good]["file"], file(good));
  }
}

TEST_F(Corpus, ListingRunsNoneOfThem) {
  const Json result = list({});
  EXPECT_EQ(result["rejected"].size(), std::size(kMade) + std::size(kRejected));
  std::set<std::string> available;
  for (const Json& each : result["backends"]) {
    if (each["state"] == "available") available.insert(each["id"]);
  }
  for (const Case& about : kBrokenCode) EXPECT_EQ(available.count(about.name), 1U) << about.name;
}

TEST_F(Corpus, InfoOfOneSaysTheSame) {
  for (const Case& about : kBrokenCode) {
    if (about.name == std::string_view("hangs")) continue;  // `info` waits for it for longer
    const Outcome outcome = run({"info", about.name}, {{{"BACKPLANE_PLUGIN_PATH", place_.file("")}}});
    EXPECT_EQ(outcome.code, 1) << about.name;
    EXPECT_TRUE(contains(outcome.err, about.expected)) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, about.remedy)) << outcome.err;
  }
  for (const Made& made : kMade) {
    const Outcome outcome = run({"info", made.about.name}, {{{"BACKPLANE_PLUGIN_PATH", place_.file("")}}});
    EXPECT_EQ(outcome.code, 1) << made.about.name;
    EXPECT_TRUE(contains(outcome.err, made.about.expected)) << outcome.err;
  }
}

}  // namespace
}  // namespace backplane::test
