// SPDX-License-Identifier: Apache-2.0
//
// Reads shared objects for this machine without running any of their code. The bytes may be anything: every offset,
// size and count is checked, and at most 1 MiB of dynamic entries and 2 MiB of notes are read, whatever the size of the
// file. All data is found through program headers, as the dynamic loader does, so files without section headers are
// accepted.
//
// Format: System V gABI, chapters 4 and 5, and elf(5).
#pragma once

#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace backplane::base {

// Why a file is not a valid shared object for this machine: `text` is a clause about it ("it is truncated: ...").
struct ElfError {
  enum class Kind { kNoSharedObject, kDamaged, kOtherMachine };

  Kind kind;
  std::string text;
};

// A source of bytes. Callers read only below size().
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Fills `into` from `offset` on. Throws if the bytes cannot be read.
  virtual void read(uint64_t offset, std::span<std::byte> into) const = 0;
};

// Bytes in memory. The memory must outlive this object.
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

// The functions throw ElfError and the exceptions of the source.
class ElfFile {
 public:
  // Checks the headers and the segments for anything that would make dlopen crash or hang. `source` must outlive it.
  explicit ElfFile(const ByteSource& source) : source_(source) {
    check_identification();
    if (source_.size() < sizeof header_) damaged("it is truncated: it ends inside its ELF header");
    header_ = read<Elf64_Ehdr>(0);
    check_type();
    read_segments();
    check_load_segments();
    read_dynamic();
  }

  const Elf64_Ehdr& header() const { return header_; }
  const std::vector<Elf64_Dyn>& dynamic() const { return dynamic_; }  // without DT_NULL

  // The value of a dynamic entry; 0 if there is none.
  uint64_t value_of(int64_t tag) const {
    const auto found = std::find_if(dynamic_.begin(), dynamic_.end(), [tag](const auto& e) { return e.d_tag == tag; });
    return found == dynamic_.end() ? 0 : found->d_un.d_val;
  }

  // The descriptions of all notes of this name and type. The name does not include its NUL.
  std::vector<std::vector<std::byte>> notes(std::string_view name, uint32_t type) const {
    std::vector<std::vector<std::byte>> found;
    uint64_t total = 0;
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_NOTE) continue;
      const std::vector<std::byte> bytes = read_segment(segment, "note segment");
      total += bytes.size();
      if (total > kMaxRead) damaged("its note segments together are larger than ", kMaxRead, " bytes");
      collect_notes(bytes, segment.p_align == 8 ? 8 : 4, name, type, found);
    }
    return found;
  }

  // Reads from an offset in the file.
  template <typename T>
  T read(uint64_t offset, const char* what = "structure") const {
    if (!is_inside(offset, sizeof(T), source_.size())) damaged("it is truncated: its ", what, " lies outside the file");
    T value;
    source_.read(offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  // Reads from an address in the segments that the loader maps.
  void read_mapped(uint64_t address, std::span<std::byte> into, const char* what) const {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
      const uint64_t offset = address - segment.p_vaddr;
      if (is_inside(offset, into.size(), segment.p_filesz)) return source_.read(segment.p_offset + offset, into);
    }
    damaged("its ", what, " lies outside its load segments");
  }
  template <typename T>
  T read_mapped(uint64_t address, const char* what) const {
    T value;
    read_mapped(address, std::as_writable_bytes(std::span(&value, 1)), what);
    return value;
  }

  template <typename... Parts>
  [[noreturn]] static void damaged(const Parts&... parts) {
    fail(ElfError::Kind::kDamaged, parts...);
  }

 private:
#if defined(__x86_64__)
  static constexpr uint16_t kMachine = EM_X86_64;
  static constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
  static constexpr uint16_t kMachine = EM_AARCH64;
  static constexpr const char* kMachineName = "AArch64";
#else
#error "Backplane does not know this machine"
#endif
  static constexpr uint64_t kMaxSegments = 256;            // real ones have about ten
  static constexpr uint64_t kMaxRead = uint64_t{1} << 20;  // bytes of a dynamic section or a note segment
  static constexpr uint64_t kAddressLimit = uint64_t{1} << 47;

  static std::string text_of(const char* part) { return part; }
  static std::string text_of(uint64_t part) { return std::to_string(part); }
  template <typename... Parts>
  [[noreturn]] static void fail(ElfError::Kind kind, const Parts&... parts) {
    throw ElfError{kind, (text_of(parts) + ...)};
  }
  template <typename... Parts>
  [[noreturn]] static void fail_other_machine(const Parts&... parts) {
    fail(ElfError::Kind::kOtherMachine, parts...);
  }
  template <typename... Parts>
  [[noreturn]] static void fail_no_shared_object(const Parts&... parts) {
    fail(ElfError::Kind::kNoSharedObject, parts...);
  }

  static bool is_inside(uint64_t offset, uint64_t size, uint64_t total) {
    return size <= total && offset <= total - size;
  }

  std::vector<std::byte> read_segment(const Elf64_Phdr& segment, const char* what) const {
    if (!is_inside(segment.p_offset, segment.p_filesz, source_.size())) {
      damaged("it is truncated: its ", what, " lies outside the file");
    }
    if (segment.p_filesz > kMaxRead) {
      damaged("its ", what, " of ", segment.p_filesz, " bytes is larger than ", kMaxRead, " bytes");
    }
    std::vector<std::byte> bytes(segment.p_filesz);
    source_.read(segment.p_offset, bytes);
    return bytes;
  }

  void check_identification() const {
    if (source_.size() == 0) damaged("it is empty");
    unsigned char ident[EI_NIDENT] = {};
    const uint64_t size = std::min<uint64_t>(source_.size(), sizeof ident);
    source_.read(0, std::as_writable_bytes(std::span(ident)).first(size));
    if (std::memcmp(ident, ELFMAG, SELFMAG) != 0) fail_no_shared_object("it is not an ELF file");
    if (size < sizeof ident) damaged("it is truncated: it ends inside its ELF identification");
    if (ident[EI_CLASS] == ELFCLASS32) fail_other_machine("it is a 32-bit file");
    if (ident[EI_CLASS] != ELFCLASS64) damaged("its ELF class ", ident[EI_CLASS], " is unknown");
    if (ident[EI_DATA] == ELFDATA2MSB) fail_other_machine("it is a big-endian file");
    if (ident[EI_DATA] != ELFDATA2LSB) damaged("its ELF byte order ", ident[EI_DATA], " is unknown");
    if (ident[EI_VERSION] != EV_CURRENT) damaged("its ELF version ", ident[EI_VERSION], " is unknown");
  }

  void check_type() const {
    if (header_.e_machine != kMachine) {
      fail_other_machine("it is for another machine (ELF machine ", header_.e_machine, "), this one is ", kMachineName);
    }
    switch (header_.e_type) {
      case ET_DYN:
        return;
      case ET_EXEC:
        fail_no_shared_object("it is an executable, not a shared object");
      case ET_REL:
        fail_no_shared_object("it is an object file that has not been linked");
      case ET_CORE:
        fail_no_shared_object("it is a core dump");
      default:
        fail_no_shared_object("its ELF type ", header_.e_type, " is not that of a shared object");
    }
  }

  void read_segments() {
    if (header_.e_phnum == 0) damaged("it has no program headers");
    if (header_.e_phnum > kMaxSegments) damaged("it has ", header_.e_phnum, " program headers, which is absurd");
    if (header_.e_phentsize != sizeof(Elf64_Phdr)) {
      damaged("its program headers have ", header_.e_phentsize, " bytes each, not ", sizeof(Elf64_Phdr));
    }
    if (!is_inside(header_.e_phoff, header_.e_phnum * sizeof(Elf64_Phdr), source_.size())) {
      damaged("it is truncated: its program headers lie outside the file");
    }
    segments_.resize(header_.e_phnum);
    source_.read(header_.e_phoff, std::as_writable_bytes(std::span(segments_)));
  }

  // A page of a mapping that lies beyond the end of the file raises SIGBUS when dlopen touches it.
  void check_load_segments() const {
    uint64_t end = 0;
    bool any = false;
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD) continue;
      if (!is_inside(segment.p_offset, segment.p_filesz, source_.size())) {
        damaged("it is truncated: a segment of ", segment.p_filesz, " bytes at offset ", segment.p_offset,
                " does not fit into the file's ", source_.size(), " bytes");
      }
      if (segment.p_filesz > segment.p_memsz || !is_inside(segment.p_vaddr, segment.p_memsz, kAddressLimit)) {
        damaged("a load segment has impossible sizes");
      }
      if (any && segment.p_vaddr < end) damaged("its load segments overlap or are out of order");
      if (((segment.p_vaddr - segment.p_offset) & 4095U) != 0) damaged("a load segment is misaligned");
      end = segment.p_vaddr + segment.p_memsz;
      any = true;
    }
    if (!any) damaged("it has no load segment");
  }

  // Position-independent executables are of type ET_DYN as well; the linker marks them here.
  void read_dynamic() {
    const auto found = std::find_if(segments_.begin(), segments_.end(),
                                    [](const Elf64_Phdr& segment) { return segment.p_type == PT_DYNAMIC; });
    if (found == segments_.end()) fail_no_shared_object("it has no dynamic section: it is not a shared object");
    const std::vector<std::byte> bytes = read_segment(*found, "dynamic section");
    for (size_t at = 0; at + sizeof(Elf64_Dyn) <= bytes.size(); at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry;
      std::memcpy(&entry, bytes.data() + at, sizeof entry);
      if (entry.d_tag == DT_NULL) return;
      if (entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_PIE) != 0) {
        fail_no_shared_object("it is a position-independent executable, not a shared object");
      }
      dynamic_.push_back(entry);
    }
    damaged("its dynamic section has no end");
  }

  static void collect_notes(std::span<const std::byte> bytes, uint64_t alignment, std::string_view name, uint32_t type,
                            std::vector<std::vector<std::byte>>& found) {
    const auto align = [alignment](uint64_t n) { return (n + alignment - 1) & ~(alignment - 1); };
    while (bytes.size() >= sizeof(Elf64_Nhdr)) {
      Elf64_Nhdr header;
      std::memcpy(&header, bytes.data(), sizeof header);
      const uint64_t begin = align(sizeof header + uint64_t{header.n_namesz});
      const uint64_t end = begin + header.n_descsz;
      if (end > bytes.size()) damaged("its note segment is malformed: a note reaches past its end");
      if (header.n_type == type && header.n_namesz == name.size() + 1 &&
          std::memcmp(bytes.data() + sizeof header, name.data(), name.size()) == 0 &&
          bytes[sizeof header + name.size()] == std::byte{0}) {
        const auto description = bytes.subspan(begin, header.n_descsz);
        found.emplace_back(description.begin(), description.end());
      }
      bytes = bytes.subspan(std::min<uint64_t>(align(end), bytes.size()));
    }
  }

  const ByteSource& source_;
  Elf64_Ehdr header_ = {};
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Dyn> dynamic_;
};

}  // namespace backplane::base
