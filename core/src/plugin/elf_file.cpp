// SPDX-License-Identifier: Apache-2.0
//
// Format: System V gABI, chapters 4 and 5, and elf(5).
#include "plugin/elf_file.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "backplane/abi/abi.h"
#include "error.hpp"
#include "plugin/reject.hpp"

namespace backplane::core::plugin {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kMachineName = "AArch64";
#else
#error "Backplane does not know this machine"
#endif

constexpr uint64_t kMaxSegments = 256;            // real ones have about ten
constexpr uint64_t kMaxRead = uint64_t{1} << 20;  // bytes of a dynamic section or a note segment
constexpr uint64_t kAddressLimit = uint64_t{1} << 47;

using Segments = std::vector<Elf64_Phdr>;

template <typename T>
T read_struct(const ByteSource& file, uint64_t offset) {
  T value;
  file.read(offset, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

bool inside(uint64_t offset, uint64_t size, uint64_t total) { return size <= total && offset <= total - size; }

std::vector<std::byte> read_segment(const ByteSource& file, const Elf64_Phdr& segment, const char* what) {
  if (!inside(segment.p_offset, segment.p_filesz, file.size())) {
    reject(kDamaged, "it is truncated: its {} lies outside the file", what);
  }
  if (segment.p_filesz > kMaxRead) {
    reject(kDamaged, "its {} of {} bytes is larger than {} bytes", what, segment.p_filesz, kMaxRead);
  }
  std::vector<std::byte> bytes(segment.p_filesz);
  file.read(segment.p_offset, bytes);
  return bytes;
}

void check_identification(const ByteSource& file) {
  if (file.size() == 0) reject(kDamaged, "it is empty");
  unsigned char ident[EI_NIDENT] = {};
  const uint64_t size = std::min<uint64_t>(file.size(), sizeof ident);
  file.read(0, std::as_writable_bytes(std::span(ident)).first(size));
  if (std::memcmp(ident, ELFMAG, SELFMAG) != 0) reject(kNoPlugin, "it is not an ELF file");
  if (size < sizeof ident) reject(kDamaged, "it is truncated: it ends inside its ELF identification");
  if (ident[EI_CLASS] == ELFCLASS32) reject(kOtherMachine, "it is a 32-bit file");
  if (ident[EI_CLASS] != ELFCLASS64) reject(kDamaged, "its ELF class {} is unknown", ident[EI_CLASS]);
  if (ident[EI_DATA] == ELFDATA2MSB) reject(kOtherMachine, "it is a big-endian file");
  if (ident[EI_DATA] != ELFDATA2LSB) reject(kDamaged, "its ELF byte order {} is unknown", ident[EI_DATA]);
  if (ident[EI_VERSION] != EV_CURRENT) reject(kDamaged, "its ELF version {} is unknown", ident[EI_VERSION]);
}

void check_type(const Elf64_Ehdr& header) {
  if (header.e_machine != kMachine) {
    reject(kOtherMachine, "it is for another machine (ELF machine {}), this one is {}", header.e_machine, kMachineName);
  }
  switch (header.e_type) {
    case ET_DYN:
      return;
    case ET_EXEC:
      reject(kNoPlugin, "it is an executable, not a shared object");
    case ET_REL:
      reject(kNoPlugin, "it is an object file that has not been linked");
    case ET_CORE:
      reject(kNoPlugin, "it is a core dump");
    default:
      reject(kNoPlugin, "its ELF type {} is not that of a shared object", header.e_type);
  }
}

Segments read_segments(const ByteSource& file, const Elf64_Ehdr& header) {
  if (header.e_phnum == 0) reject(kDamaged, "it has no program headers");
  if (header.e_phnum > kMaxSegments) reject(kDamaged, "it has {} program headers, which is absurd", header.e_phnum);
  if (header.e_phentsize != sizeof(Elf64_Phdr)) {
    reject(kDamaged, "its program headers have {} bytes each, not {}", header.e_phentsize, sizeof(Elf64_Phdr));
  }
  if (!inside(header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr), file.size())) {
    reject(kDamaged, "it is truncated: its program headers lie outside the file");
  }
  Segments segments(header.e_phnum);
  file.read(header.e_phoff, std::as_writable_bytes(std::span(segments)));
  return segments;
}

// A page of a mapping that lies beyond the end of the file raises SIGBUS when dlopen touches it.
void check_load_segments(const Segments& segments, uint64_t file_size) {
  uint64_t end = 0;
  bool any = false;
  for (const auto& segment : segments) {
    if (segment.p_type != PT_LOAD) continue;
    if (!inside(segment.p_offset, segment.p_filesz, file_size)) {
      reject(kDamaged, "it is truncated: a segment of {} bytes at offset {} does not fit into the file's {} bytes",
             segment.p_filesz, segment.p_offset, file_size);
    }
    if (segment.p_filesz > segment.p_memsz || !inside(segment.p_vaddr, segment.p_memsz, kAddressLimit)) {
      reject(kDamaged, "a load segment has impossible sizes");
    }
    if (any && segment.p_vaddr < end) reject(kDamaged, "its load segments overlap or are out of order");
    if (((segment.p_vaddr - segment.p_offset) & 4095U) != 0) reject(kDamaged, "a load segment is misaligned");
    end = segment.p_vaddr + segment.p_memsz;
    any = true;
  }
  if (!any) reject(kDamaged, "it has no load segment");
}

// Position-independent executables are of type ET_DYN, too; the linker marks them here.
void check_dynamic(const ByteSource& file, const Segments& segments) {
  const auto dynamic = std::find_if(segments.begin(), segments.end(),
                                    [](const Elf64_Phdr& segment) { return segment.p_type == PT_DYNAMIC; });
  if (dynamic == segments.end()) reject(kNoPlugin, "it has no dynamic section: it is not a shared object");
  const auto bytes = read_segment(file, *dynamic, "dynamic section");
  for (size_t at = 0; at + sizeof(Elf64_Dyn) <= bytes.size(); at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, bytes.data() + at, sizeof entry);
    if (entry.d_tag == DT_NULL) return;
    if (entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_PIE) != 0) {
      reject(kNoPlugin, "it is a position-independent executable, not a shared object");
    }
  }
  reject(kDamaged, "its dynamic section has no end");
}

// Appends the description of each Backplane note of a segment.
void collect_notes(std::span<const std::byte> bytes, uint64_t alignment, std::vector<std::vector<std::byte>>& found) {
  const auto align = [alignment](uint64_t n) { return (n + alignment - 1) & ~(alignment - 1); };
  constexpr std::string_view kName(BP_NOTE_NAME, sizeof BP_NOTE_NAME);
  while (bytes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const uint64_t begin = align(sizeof header + uint64_t{header.n_namesz});
    const uint64_t end = begin + header.n_descsz;
    if (end > bytes.size()) reject(kDamaged, "its note segment is malformed: a note reaches past its end");
    if (header.n_type == BP_NOTE_TYPE && header.n_namesz == kName.size() &&
        std::memcmp(bytes.data() + sizeof header, kName.data(), kName.size()) == 0) {
      const auto description = bytes.subspan(begin, header.n_descsz);
      found.emplace_back(description.begin(), description.end());
    }
    bytes = bytes.subspan(std::min<uint64_t>(align(end), bytes.size()));
  }
}

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override {
    if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

Note read_note(const ByteSource& file) {
  check_identification(file);
  if (file.size() < sizeof(Elf64_Ehdr)) reject(kDamaged, "it is truncated: it ends inside its ELF header");
  const auto header = read_struct<Elf64_Ehdr>(file, 0);
  check_type(header);
  const Segments segments = read_segments(file, header);
  check_load_segments(segments, file.size());
  check_dynamic(file, segments);

  std::vector<std::vector<std::byte>> notes;
  for (const auto& segment : segments) {
    if (segment.p_type != PT_NOTE) continue;
    collect_notes(read_segment(file, segment, "note segment"), segment.p_align == 8 ? 8 : 4, notes);
  }
  if (notes.empty()) reject(kNoPlugin, "it has no {} note: it is not a Backplane plugin", BP_NOTE_SECTION);
  if (notes.size() > 1) reject(kBadNote, "it has {} {} notes, not one", notes.size(), BP_NOTE_SECTION);
  return parse_note(notes.front());
}

Note read_note(std::span<const std::byte> file) { return read_note(MemorySource(file)); }

}  // namespace backplane::core::plugin
