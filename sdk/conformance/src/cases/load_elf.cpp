// SPDX-License-Identifier: Apache-2.0
//
// Format: System V gABI, chapters 4 and 5, and elf(5). Every offset, size and count comes from the file and is checked.
#include "load_elf.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>

#include "../say.hpp"
#include "backplane/abi/abi.h"

namespace backplane::conformance::load {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
#error "The conformance of plugins is not checked on this machine"
#endif

constexpr uint64_t kMaxSymbols = UINT64_C(1) << 22;

struct Malformed {
  std::string text;
};

template <typename... Parts>
[[noreturn]] void malformed(const Parts&... parts) {
  throw Malformed{say(parts...)};
}

// The file in memory.
class Bytes {
 public:
  explicit Bytes(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) malformed("cannot be examined: ", std::strerror(errno));
    if (S_ISDIR(status.st_mode)) malformed("is a directory");
    if (!S_ISREG(status.st_mode)) malformed("is not a regular file");
    if (status.st_size == 0) malformed("is empty");
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) malformed("cannot be opened: ", std::strerror(errno));
    size_ = static_cast<uint64_t>(status.st_size);
    void* memory = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) malformed("cannot be read: ", std::strerror(errno));
    data_ = static_cast<const char*>(memory);
  }
  ~Bytes() { munmap(const_cast<char*>(data_), size_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  uint64_t size() const { return size_; }

  std::string_view view(uint64_t offset, uint64_t size, const char* what) const {
    if (size > size_ || offset > size_ - size) malformed("is truncated: it ends before the end of its ", what);
    return {data_ + offset, size};
  }

  template <typename T>
  T read(uint64_t offset, const char* what) const {
    T value;
    std::memcpy(&value, view(offset, sizeof value, what).data(), sizeof value);
    return value;
  }

 private:
  const char* data_ = nullptr;
  uint64_t size_ = 0;
};

class Reader {
 public:
  Reader(const std::string& path, ElfFile& result) : bytes_(path), result_(result) {}

  void run() {
    read_header();
    read_segments();
    read_dynamic();
    read_notes();
    read_needed();
    read_versions();
    read_symbols();
  }

 private:
  void read_header() {
    if (bytes_.size() < SELFMAG || bytes_.view(0, SELFMAG, "magic number") != std::string_view(ELFMAG, SELFMAG)) {
      malformed("is not an ELF file");
    }
    const std::string_view ident = bytes_.view(0, EI_NIDENT, "ELF identification");
    if (ident[EI_CLASS] != ELFCLASS64) malformed("is not a 64-bit file");
    if (ident[EI_DATA] != ELFDATA2LSB) malformed("is not a little-endian file");
    if (ident[EI_VERSION] != EV_CURRENT) malformed("has the unknown ELF version ", static_cast<int>(ident[EI_VERSION]));
    header_ = bytes_.read<Elf64_Ehdr>(0, "ELF header");
    if (header_.e_machine != kMachine) malformed("is for another machine (ELF machine ", header_.e_machine, ")");
    if (header_.e_type == ET_EXEC) malformed("is an executable, not a shared object");
    if (header_.e_type != ET_DYN) malformed("has the ELF type ", header_.e_type, ", not that of a shared object");
  }

  void read_segments() {
    if (header_.e_phnum == 0) malformed("has no program headers");
    if (header_.e_phentsize != sizeof(Elf64_Phdr)) malformed("has program headers of ", header_.e_phentsize, " bytes");
    uint64_t end = 0;
    for (uint64_t i = 0; i < header_.e_phnum; ++i) {
      const auto segment = bytes_.read<Elf64_Phdr>(header_.e_phoff + i * sizeof(Elf64_Phdr), "program headers");
      segments_.push_back(segment);
      if (segment.p_type != PT_LOAD) continue;
      bytes_.view(segment.p_offset, segment.p_filesz, "load segment");
      if (segment.p_filesz > segment.p_memsz) malformed("has a load segment that is larger in the file than in memory");
      if (segment.p_vaddr < end) malformed("has load segments that overlap or are out of order");
      if (segment.p_memsz > UINT64_MAX - segment.p_vaddr) malformed("has a load segment of impossible size");
      end = segment.p_vaddr + segment.p_memsz;
    }
    if (end == 0) malformed("has no load segment");
  }

  // A span of memory, as the loader maps it from the file.
  std::string_view mapped(uint64_t address, uint64_t size, const char* what) const {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
      const uint64_t offset = address - segment.p_vaddr;
      if (offset <= segment.p_filesz && size <= segment.p_filesz - offset) {
        return bytes_.view(segment.p_offset + offset, size, what);
      }
    }
    malformed("has its ", what, " outside of its load segments");
  }
  template <typename T>
  T mapped_read(uint64_t address, const char* what) const {
    T value;
    std::memcpy(&value, mapped(address, sizeof value, what).data(), sizeof value);
    return value;
  }

  void read_dynamic() {
    const auto found = std::find_if(segments_.begin(), segments_.end(),
                                    [](const Elf64_Phdr& segment) { return segment.p_type == PT_DYNAMIC; });
    if (found == segments_.end()) malformed("has no dynamic section: it is not a shared object");
    for (uint64_t at = 0;; at += sizeof(Elf64_Dyn)) {
      if (at + sizeof(Elf64_Dyn) > found->p_filesz) malformed("has a dynamic section without an end");
      const auto entry = bytes_.read<Elf64_Dyn>(found->p_offset + at, "dynamic section");
      if (entry.d_tag == DT_NULL) break;
      dynamic_.push_back(entry);
    }
    if ((value_of(DT_FLAGS_1) & DF_1_PIE) != 0) malformed("is a position-independent executable, not a shared object");
    if (value_of(DT_STRTAB) == 0 || value_of(DT_SYMTAB) == 0) malformed("has no dynamic symbols");
    strings_ = mapped(value_of(DT_STRTAB), value_of(DT_STRSZ), "string table");
  }

  uint64_t value_of(int64_t tag) const {
    const auto found =
        std::find_if(dynamic_.begin(), dynamic_.end(), [tag](const Elf64_Dyn& entry) { return entry.d_tag == tag; });
    return found == dynamic_.end() ? 0 : found->d_un.d_val;
  }

  std::string string_at(uint64_t offset) const {
    const size_t end = offset < strings_.size() ? strings_.find('\0', offset) : std::string_view::npos;
    if (end == std::string_view::npos) malformed("has a name outside of its string table");
    return std::string(strings_.substr(offset, end - offset));
  }

  void read_needed() {
    for (const Elf64_Dyn& entry : dynamic_) {
      if (entry.d_tag == DT_NEEDED) result_.needed.push_back(string_at(entry.d_un.d_val));
    }
  }

  void read_notes() {
    constexpr std::string_view kName(BP_NOTE_NAME, sizeof BP_NOTE_NAME);
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_NOTE) continue;
      const uint64_t unit = segment.p_align == 8 ? 8 : 4;
      const auto align = [unit](uint64_t n) { return (n + unit - 1) & ~(unit - 1); };
      std::string_view notes = bytes_.view(segment.p_offset, segment.p_filesz, "note segment");
      while (notes.size() >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr note;
        std::memcpy(&note, notes.data(), sizeof note);
        const uint64_t begin = align(sizeof note + uint64_t{note.n_namesz});
        const uint64_t end = begin + note.n_descsz;
        if (end > notes.size()) malformed("has a note that reaches past its segment");
        if (note.n_type == BP_NOTE_TYPE && notes.substr(sizeof note, note.n_namesz) == kName) {
          result_.notes.emplace_back(notes.substr(begin, note.n_descsz));
        }
        notes.remove_prefix(std::min<uint64_t>(align(end), notes.size()));
      }
    }
  }

  // Index of a version, as symbols name it -> its name.
  void read_versions() {
    uint64_t at = value_of(DT_VERNEED);
    for (uint64_t i = 0; at != 0 && i < value_of(DT_VERNEEDNUM); ++i) {
      const auto file = mapped_read<Elf64_Verneed>(at, "version table");
      uint64_t name_at = at + file.vn_aux;
      for (unsigned j = 0; j < file.vn_cnt; ++j) {
        const auto version = mapped_read<Elf64_Vernaux>(name_at, "version table");
        versions_[version.vna_other] = string_at(version.vna_name);
        name_at += version.vna_next;
      }
      at += file.vn_next;
    }
  }

  uint64_t symbol_count() const {
    if (const uint64_t hash = value_of(DT_HASH); hash != 0) return mapped_read<uint32_t>(hash + 4, "hash table");
    for (uint64_t i = 0; header_.e_shentsize == sizeof(Elf64_Shdr) && i < header_.e_shnum; ++i) {
      const auto section = bytes_.read<Elf64_Shdr>(header_.e_shoff + i * sizeof(Elf64_Shdr), "section headers");
      if (section.sh_type == SHT_DYNSYM) return section.sh_size / sizeof(Elf64_Sym);
    }
    return gnu_hash_count();
  }

  // The chains of a GNU hash table tell where the symbols end.
  uint64_t gnu_hash_count() const {
    const uint64_t table = value_of(DT_GNU_HASH);
    if (table == 0) malformed("has no hash table of its dynamic symbols");
    const auto buckets = mapped_read<uint32_t>(table, "hash table");
    const auto first = mapped_read<uint32_t>(table + 4, "hash table");
    const auto bloom = mapped_read<uint32_t>(table + 8, "hash table");
    const uint64_t bucket_at = table + 16 + uint64_t{bloom} * 8;
    uint64_t last = 0;
    for (uint64_t i = 0; i < buckets; ++i) {
      last = std::max<uint64_t>(last, mapped_read<uint32_t>(bucket_at + 4 * i, "hash table"));
    }
    if (last < first) return first;
    const uint64_t chains = bucket_at + uint64_t{buckets} * 4;
    while ((mapped_read<uint32_t>(chains + 4 * (last - first), "hash table") & 1U) == 0) ++last;
    return last + 1;
  }

  void read_symbols() {
    const uint64_t count = symbol_count();
    if (count > kMaxSymbols) malformed("has ", count, " dynamic symbols, which is absurd");
    for (uint64_t i = 1; i < count; ++i) {
      const auto raw = mapped_read<Elf64_Sym>(value_of(DT_SYMTAB) + i * sizeof(Elf64_Sym), "symbol table");
      const unsigned char visibility = ELF64_ST_VISIBILITY(raw.st_other);
      Symbol symbol = {string_at(raw.st_name),
                       "",
                       static_cast<unsigned char>(ELF64_ST_BIND(raw.st_info)),
                       static_cast<unsigned char>(ELF64_ST_TYPE(raw.st_info)),
                       visibility == STV_DEFAULT || visibility == STV_PROTECTED,
                       raw.st_shndx,
                       raw.st_size};
      if (const uint64_t table = value_of(DT_VERSYM); table != 0) {
        const auto version = versions_.find(mapped_read<uint16_t>(table + i * 2, "version table") & 0x7fffU);
        if (version != versions_.end()) symbol.version = version->second;
      }
      result_.symbols.push_back(std::move(symbol));
    }
  }

  const Bytes bytes_;
  ElfFile& result_;
  Elf64_Ehdr header_ = {};
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Dyn> dynamic_;
  std::string_view strings_;
  std::map<unsigned, std::string> versions_;
};

}  // namespace

ElfFile read_elf(const std::string& path) {
  ElfFile file;
  try {
    Reader(path, file).run();
  } catch (const Malformed& problem) {
    file.problem = problem.text;
  }
  return file;
}

}  // namespace backplane::conformance::load
