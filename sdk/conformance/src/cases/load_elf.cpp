// SPDX-License-Identifier: Apache-2.0
//
// Format: System V gABI, chapters 4 and 5, and elf(5). Every offset, size and count comes from the file and is checked.
#include "load_elf.hpp"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>

#include "backplane/abi/abi.h"
#include "backplane/base/descriptor.hpp"
#include "backplane/base/elf.hpp"

namespace backplane::conformance::load {
namespace {

constexpr uint64_t kMaxSymbols = UINT64_C(1) << 22;

using base::ElfError;

// A regular file, mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) refuse("it cannot be examined");
    if (S_ISDIR(status.st_mode)) throw ElfError{ElfError::Kind::kNoSharedObject, "it is a directory"};
    if (!S_ISREG(status.st_mode)) throw ElfError{ElfError::Kind::kNoSharedObject, "it is not a regular file"};
    if (status.st_size == 0) throw ElfError{ElfError::Kind::kDamaged, "it is empty"};
    const base::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file) refuse("it cannot be opened");
    size_ = static_cast<uint64_t>(status.st_size);
    memory_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (memory_ == MAP_FAILED) refuse("it cannot be read");
  }
  ~MappedFile() { munmap(memory_, size_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(memory_), size_}; }

 private:
  [[noreturn]] static void refuse(const char* what) {
    throw ElfError{ElfError::Kind::kDamaged, fmt::format("{}: {}", what, std::strerror(errno))};
  }

  void* memory_ = MAP_FAILED;
  uint64_t size_ = 0;
};

// Reads the symbol tables that the dynamic loader uses.
class Reader {
 public:
  Reader(const std::string& path, ElfFile& result) : mapped_(path), bytes_(mapped_.bytes()), result_(result) {}

  void run() {
    if (file_.value_of(DT_STRTAB) == 0 || file_.value_of(DT_SYMTAB) == 0) file_.damaged("it has no dynamic symbols");
    if (file_.value_of(DT_STRSZ) > bytes_.size()) file_.damaged("its string table lies outside its load segments");
    strings_.resize(file_.value_of(DT_STRSZ));
    file_.read_mapped(file_.value_of(DT_STRTAB), std::as_writable_bytes(std::span(strings_)), "string table");
    for (const std::vector<std::byte>& note : file_.notes(BP_NOTE_NAME, BP_NOTE_TYPE)) {
      result_.notes.emplace_back(reinterpret_cast<const char*>(note.data()), note.size());
    }
    read_needed();
    read_versions();
    read_symbols();
  }

 private:
  std::string string_at(uint64_t offset) const {
    const size_t end = offset < strings_.size() ? strings_.find('\0', offset) : std::string::npos;
    if (end == std::string::npos) file_.damaged("it has a name outside of its string table");
    return strings_.substr(offset, end - offset);
  }

  void read_needed() {
    for (const Elf64_Dyn& entry : file_.dynamic()) {
      if (entry.d_tag == DT_NEEDED) result_.needed.push_back(string_at(entry.d_un.d_val));
    }
  }

  // Maps the version indices of symbols to the versions' names.
  void read_versions() {
    uint64_t at = file_.value_of(DT_VERNEED);
    for (uint64_t i = 0; at != 0 && i < file_.value_of(DT_VERNEEDNUM); ++i) {
      const auto file = file_.read_mapped<Elf64_Verneed>(at, "version table");
      uint64_t name_at = at + file.vn_aux;
      for (unsigned j = 0; j < file.vn_cnt; ++j) {
        const auto version = file_.read_mapped<Elf64_Vernaux>(name_at, "version table");
        versions_[version.vna_other] = string_at(version.vna_name);
        name_at += version.vna_next;
      }
      at += file.vn_next;
    }
  }

  uint64_t symbol_count() const {
    if (const uint64_t hash = file_.value_of(DT_HASH); hash != 0)
      return file_.read_mapped<uint32_t>(hash + 4, "hash table");
    const Elf64_Ehdr& header = file_.header();
    for (uint64_t i = 0; header.e_shentsize == sizeof(Elf64_Shdr) && i < header.e_shnum; ++i) {
      const auto section = file_.read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr), "section headers");
      if (section.sh_type == SHT_DYNSYM) return section.sh_size / sizeof(Elf64_Sym);
    }
    return gnu_hash_count();
  }

  // The number of symbols, from the chains of a GNU hash table.
  uint64_t gnu_hash_count() const {
    const uint64_t table = file_.value_of(DT_GNU_HASH);
    if (table == 0) file_.damaged("it has no hash table of its dynamic symbols");
    const auto buckets = file_.read_mapped<uint32_t>(table, "hash table");
    const auto first = file_.read_mapped<uint32_t>(table + 4, "hash table");
    const auto bloom = file_.read_mapped<uint32_t>(table + 8, "hash table");
    const uint64_t bucket_at = table + 16 + uint64_t{bloom} * 8;
    uint64_t last = 0;
    for (uint64_t i = 0; i < buckets; ++i) {
      last = std::max<uint64_t>(last, file_.read_mapped<uint32_t>(bucket_at + 4 * i, "hash table"));
    }
    if (last < first) return first;
    const uint64_t chains = bucket_at + uint64_t{buckets} * 4;
    while ((file_.read_mapped<uint32_t>(chains + 4 * (last - first), "hash table") & 1U) == 0) ++last;
    return last + 1;
  }

  void read_symbols() {
    const uint64_t count = symbol_count();
    if (count > kMaxSymbols) file_.damaged("it has ", count, " dynamic symbols, which is absurd");
    for (uint64_t i = 1; i < count; ++i) {
      const auto raw = file_.read_mapped<Elf64_Sym>(file_.value_of(DT_SYMTAB) + i * sizeof(Elf64_Sym), "symbol table");
      const unsigned char visibility = ELF64_ST_VISIBILITY(raw.st_other);
      Symbol symbol = {string_at(raw.st_name),
                       "",
                       static_cast<unsigned char>(ELF64_ST_BIND(raw.st_info)),
                       static_cast<unsigned char>(ELF64_ST_TYPE(raw.st_info)),
                       visibility == STV_DEFAULT || visibility == STV_PROTECTED,
                       raw.st_shndx,
                       raw.st_size};
      if (const uint64_t table = file_.value_of(DT_VERSYM); table != 0) {
        const auto version = versions_.find(file_.read_mapped<uint16_t>(table + i * 2, "version table") & 0x7fffU);
        if (version != versions_.end()) symbol.version = version->second;
      }
      result_.symbols.push_back(std::move(symbol));
    }
  }

  const MappedFile mapped_;
  const base::MemorySource bytes_;
  const base::ElfFile file_{bytes_};
  ElfFile& result_;
  std::string strings_;
  std::map<unsigned, std::string> versions_;
};

}  // namespace

ElfFile read_elf(const std::string& path) {
  ElfFile file;
  try {
    Reader(path, file).run();
  } catch (const ElfError& error) {
    file.problem = error.text;
  }
  return file;
}

}  // namespace backplane::conformance::load
