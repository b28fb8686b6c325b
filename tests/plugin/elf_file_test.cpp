// SPDX-License-Identifier: Apache-2.0
//
// The malformed corpus: every file is made from the good fixture by one change.
#include "plugin/elf_file.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "backplane/abi/abi.h"
#include "plugin/support.hpp"

namespace backplane::core::plugin {
namespace {

using test::Bytes;

// The good plugin with its parts by name. References are valid until the bytes change their size.
class Image {
 public:
  explicit Image(const std::string& name = "good") : bytes(test::read_file(test::fixture(name + ".so"))) {}

  Elf64_Ehdr& header() { return at<Elf64_Ehdr>(0); }
  Elf64_Phdr& segment(uint32_t type) {
    for (size_t i = 0; i < header().e_phnum; ++i) {
      auto& segment = at<Elf64_Phdr>(header().e_phoff + i * sizeof(Elf64_Phdr));
      if (segment.p_type == type) return segment;
    }
    throw std::runtime_error("no such segment");
  }
  // The check reads nothing behind it.
  size_t end_of_segments() {
    uint64_t end = 0;
    for (size_t i = 0; i < header().e_phnum; ++i) {
      const auto& segment = at<Elf64_Phdr>(header().e_phoff + i * sizeof(Elf64_Phdr));
      if (segment.p_type == PT_LOAD) end = std::max(end, segment.p_offset + segment.p_filesz);
    }
    return end;
  }
  bp_note_header& note() { return at<bp_note_header>(find_note()); }
  bp_note_backend& backend() { return at<bp_note_backend>(find_note() + sizeof(bp_note_header)); }

  Bytes bytes;

 private:
  template <typename T>
  T& at(size_t offset) {
    return *reinterpret_cast<T*>(bytes.data() + offset);
  }
  size_t find_note() const {
    for (size_t at = 0; at + 12 < bytes.size(); at += 4) {
      if (std::memcmp(bytes.data() + at, "Backplane\0\0", 12) == 0) return at - offsetof(bp_note_header, name);
    }
    throw std::runtime_error("no note");
  }
};

std::string reason(const Bytes& bytes) {
  return test::error_of([&bytes] { read_note(bytes); }).what();
}

TEST(ElfFile, AcceptsTheExtensionsThatTheCoreHas) {
  Image image("good");
  std::strcpy(image.note().needs, BP_EXT_RPC " " BP_EXT_REDUCE " " BP_EXT_DEVICE);
  EXPECT_EQ(read_note(image.bytes).backends.size(), 1U);
}

TEST(ElfFile, ReadsTheNoteOfAGoodPlugin) {
  const Note note = read_note(Image("two").bytes);
  EXPECT_EQ(note.built_minor, uint32_t{BP_ABI_MINOR});
  EXPECT_EQ(note.need_minor, 0U);
  ASSERT_EQ(note.backends.size(), 2U);
  EXPECT_EQ(note.backends[0].id, "good");
  EXPECT_EQ(note.backends[0].version, "1.0");
  EXPECT_EQ(note.backends[0].kinds, uint32_t{BP_KIND_PROCESS_GROUP});
  EXPECT_EQ(note.backends[0].flags, uint32_t{BP_BACKEND_TAGS});
  EXPECT_EQ(note.backends[0].ops, BP_BIT(BP_SEND) | BP_BIT(BP_RECV));
  EXPECT_EQ(note.index_of("second"), 1);
  EXPECT_EQ(note.index_of("third"), -1);
}

TEST(ElfFile, NeedsNoSectionHeaders) {
  Image image;
  image.header().e_shoff = image.header().e_shnum = image.header().e_shstrndx = 0;
  EXPECT_EQ(read_note(image.bytes).backends.size(), 1U);
}

TEST(ElfFile, AcceptsLongerRecordsOfANewerMinor) {
  Image image("two");
  image.note().backend_count = 1;
  image.note().backend_size *= 2;
  image.note().built_minor = BP_ABI_MINOR + 5;
  EXPECT_EQ(read_note(image.bytes).backends.size(), 1U);
}

struct Malformed {
  const char* reason;
  std::function<void(Image&)> change;
};

const Malformed kMalformed[] = {
    {"it is empty", [](Image& i) { i.bytes.clear(); }},
    {"it is not an ELF file", [](Image& i) { i.bytes.assign(3000, std::byte{'x'}); }},
    {"ends inside its ELF identification", [](Image& i) { i.bytes.resize(9); }},
    {"ends inside its ELF header", [](Image& i) { i.bytes.resize(40); }},
    {"program headers lie outside", [](Image& i) { i.bytes.resize(100); }},
    {"does not fit into the file's", [](Image& i) { i.bytes.resize(i.segment(PT_DYNAMIC).p_offset + 8); }},
    {"32-bit", [](Image& i) { i.header().e_ident[EI_CLASS] = ELFCLASS32; }},
    {"ELF class 9", [](Image& i) { i.header().e_ident[EI_CLASS] = 9; }},
    {"big-endian", [](Image& i) { i.header().e_ident[EI_DATA] = ELFDATA2MSB; }},
    {"byte order 0", [](Image& i) { i.header().e_ident[EI_DATA] = 0; }},
    {"ELF version", [](Image& i) { i.header().e_ident[EI_VERSION] = 2; }},
    {"another machine (ELF machine 22)", [](Image& i) { i.header().e_machine = EM_S390; }},
    {"an executable, not", [](Image& i) { i.header().e_type = ET_EXEC; }},
    {"not been linked", [](Image& i) { i.header().e_type = ET_REL; }},
    {"core dump", [](Image& i) { i.header().e_type = ET_CORE; }},
    {"ELF type 77", [](Image& i) { i.header().e_type = 77; }},
    {"no program headers", [](Image& i) { i.header().e_phnum = 0; }},
    {"65535 program headers", [](Image& i) { i.header().e_phnum = PN_XNUM; }},
    {"have 32 bytes each", [](Image& i) { i.header().e_phentsize = 32; }},
    {"impossible sizes", [](Image& i) { i.segment(PT_LOAD).p_memsz = 0; }},
    {"misaligned", [](Image& i) { i.segment(PT_LOAD).p_vaddr += 4; }},
    {"overlap", [](Image& i) { i.segment(PT_LOAD).p_memsz = uint64_t{1} << 40; }},
    {"no dynamic section", [](Image& i) { i.segment(PT_DYNAMIC).p_type = PT_NULL; }},
    {"dynamic section lies outside", [](Image& i) { i.segment(PT_DYNAMIC).p_offset = ~uint64_t{0} - 8; }},
    {"dynamic section has no end", [](Image& i) { i.segment(PT_DYNAMIC).p_filesz = 16; }},
    {"note segment lies outside", [](Image& i) { i.segment(PT_NOTE).p_filesz = uint64_t{1} << 60; }},
    {"note segment is malformed", [](Image& i) { i.note().description_size = 0xFFFFFFFF; }},
    {"it has no .note.backplane note", [](Image& i) { i.note().type = 2; }},
    {"magic number 0x00000001", [](Image& i) { i.note().magic = 1; }},
    {"built for ABI 2.0", [](Image& i) { i.note().abi_major = 2; }},
    {"built for ABI 0.0", [](Image& i) { i.note().abi_major = 0; }},
    {"needs a core with ABI 1.7, this one has 1.0", [](Image& i) { i.note().need_minor = i.note().built_minor = 7; }},
    {"announces 0 backends", [](Image& i) { i.note().backend_count = 0; }},
    {"announces 4000000000 backends", [](Image& i) { i.note().backend_count = 4000000000; }},
    {"records of 8 bytes", [](Image& i) { i.note().backend_size = 8; }},
    {"records of 4294967295 bytes", [](Image& i) { i.note().backend_size = 0xFFFFFFFF; }},
    {"2 backends of 76 bytes each make 256", [](Image& i) { i.note().backend_count = 2; }},
    {"'Good', which is not a valid id", [](Image& i) { i.backend().id[0] = 'G'; }},
    {"'', which is not a valid id", [](Image& i) { i.backend().id[0] = '\0'; }},
    {"with unprintable characters", [](Image& i) { i.backend().id[0] = '\n'; }},
    {"the id of a backend in its note is not", [](Image& i) { std::memset(i.backend().id, 'x', 36); }},
    {"the version of a backend in its note is not", [](Image& i) { std::memset(i.backend().version, '1', 24); }},
    {"version of backend 'good' in its note is empty", [](Image& i) { i.backend().version[0] = '\0'; }},
    {"of no kind", [](Image& i) { i.backend().kinds = 0; }},
};

TEST(ElfFile, RejectsEachMalformedFileWithItsOwnReason) {
  std::set<std::string> reasons;
  for (const auto& malformed : kMalformed) {
    Image image;
    malformed.change(image);
    const std::string text = reason(image.bytes);
    EXPECT_TRUE(test::contains(text, malformed.reason))
        << "expected '" << malformed.reason << "', got '" << text << "'";
    EXPECT_TRUE(reasons.insert(text).second) << text;
    EXPECT_TRUE(test::contains(text, "; ")) << "nothing says what to do: " << text;
  }
}

TEST(ElfFile, RejectsMissingAndRepeatedParts) {
  EXPECT_TRUE(test::contains(reason(Image("no_note").bytes), "it has no .note.backplane note"));
  EXPECT_TRUE(test::contains(reason(Image("duplicate_note").bytes), "it has 2 .note.backplane notes"));
  const Bytes program = test::read_file(test::fixture("plugin_test_executable"));
  EXPECT_TRUE(test::contains(reason(program), "position-independent executable"));
  Image twice("two");
  std::strcpy((&twice.backend())[1].id, "good");
  EXPECT_TRUE(test::contains(reason(twice.bytes), "its note names backend 'good' twice; remove or update"));
}

TEST(ElfFile, RejectsANoteShorterThanItsHeader) {
  const Bytes description(20);
  const Error error = test::error_of([&description] { parse_note(description); });
  EXPECT_TRUE(
      test::contains(error.what(), "its note is 20 bytes long, shorter than the header of 104; remove or update"));
}

TEST(ElfFile, RejectsEveryTruncation) {
  Image image;
  const size_t end = image.end_of_segments();
  ASSERT_LT(end, image.bytes.size());
  std::vector<size_t> sizes = {end - 1, end};
  for (size_t size = 0; size < image.bytes.size(); size += size < 1024 ? 1 : 61) sizes.push_back(size);
  for (const size_t size : sizes) {
    std::string text;
    try {
      read_note(std::span(image.bytes).first(size));
    } catch (const Error& e) {
      text = e.what();
    }
    ASSERT_EQ(text.empty(), size >= end) << size << " bytes: '" << text << "'";
    ASSERT_TRUE(text.empty() || test::contains(text, "; ")) << "nothing says what to do: " << text;
  }
}

TEST(ElfFile, SurvivesRandomDamage) {
  const Image good("two");
  std::mt19937_64 random(20240607);
  int rejected = 0;
  for (int round = 0; round < 1000; ++round) {
    Bytes bytes = good.bytes;
    // Half of the changes are at the beginning, where the headers and notes are.
    const size_t reach = round % 2 == 0 ? bytes.size() : 1536;
    for (uint64_t left = 1 + random() % 32; left > 0; --left) bytes[random() % reach] = std::byte(random() & 0xFF);
    if (round % 5 == 0) bytes.resize(random() % bytes.size());
    try {
      EXPECT_FALSE(read_note(bytes).backends.empty());
    } catch (const Error& e) {
      EXPECT_TRUE(test::contains(e.what(), "; ")) << "nothing says what to do: " << e.what();
      ++rejected;
    }
  }
  EXPECT_GT(rejected, 300);
}

}  // namespace
}  // namespace backplane::core::plugin
