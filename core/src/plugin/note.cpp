// SPDX-License-Identifier: Apache-2.0
#include "plugin/note.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "backplane/abi/abi.h"
#include "error.hpp"
#include "options/names.hpp"
#include "plugin/reject.hpp"

namespace backplane::core::plugin {
namespace {

constexpr size_t kHeaderSize = sizeof(bp_note_header) - offsetof(bp_note_header, magic);
constexpr uint32_t kMaxBackendSize = 4096;  // bytes; room for later fields

constexpr const char* kExtensions[] = {BP_EXT_REDUCE, BP_EXT_PLAN,   BP_EXT_SECURITY, BP_EXT_RPC,
                                       BP_EXT_CALLS,  BP_EXT_DEVICE, BP_EXT_MEMORY};

// The text of a fixed-size field, without its padding.
std::string_view text_of(const char* field, size_t capacity, const char* name) {
  const size_t size = strnlen(field, capacity);
  if (size == capacity) reject(kBadNote, "the {} in its note is not terminated", name);
  return {field, size};
}

void check_needs(std::string_view needs) {
  while (!needs.empty()) {
    const size_t space = std::min(needs.find(' '), needs.size());
    const std::string_view id = needs.substr(0, space);
    needs.remove_prefix(std::min(space + 1, needs.size()));
    if (id.empty() || !printable(id)) reject(kBadNote, "the extensions that it needs are not well-formed in its note");
    if (std::find(std::begin(kExtensions), std::end(kExtensions), id) == std::end(kExtensions)) {
      reject(kNewer, "it needs the extension {}, which this core does not have", id);
    }
  }
}

NoteBackend parse_backend(std::span<const std::byte> record) {
  bp_note_backend raw;
  std::memcpy(&raw, record.data(), sizeof raw);
  const auto id = text_of(raw.id, sizeof raw.id, "id of a backend");
  if (!valid_id(id)) {
    reject(kBadNote, "its note names a backend {}, which is not a valid id: 1 to 32 of a-z, 0-9, _ and -",
           printable(id) ? fmt::format("'{}'", id) : "with unprintable characters");
  }
  const auto version = text_of(raw.version, sizeof raw.version, "version of a backend");
  if (version.empty() || !printable(version)) {
    reject(kBadNote, "the version of backend '{}' in its note is empty or not printable UTF-8", id);
  }
  if (raw.kinds == 0) reject(kBadNote, "backend '{}' is of no kind in its note", id);
  const uint64_t ops = raw.ops | uint64_t{raw.ops_high} << 32;
  return {std::string(id), std::string(version), raw.kinds, raw.flags, ops};
}

void check_header(const bp_note_header& header, size_t size) {
  if (header.magic != BP_MAGIC) {
    reject(kBadNote, "its note has the magic number 0x{:08x}, not 0x{:08x}", header.magic, BP_MAGIC);
  }
  if (header.abi_major != BP_ABI_MAJOR) {
    reject(header.abi_major < BP_ABI_MAJOR ? kOlder : kNewer, "it is built for ABI {}.{}, this core has ABI {}.{}",
           header.abi_major, header.built_minor, BP_ABI_MAJOR, BP_ABI_MINOR);
  }
  if (header.need_minor > BP_ABI_MINOR) {
    reject(kNewer, "it needs a core with ABI {}.{}, this one has {}.{}", BP_ABI_MAJOR, header.need_minor, BP_ABI_MAJOR,
           BP_ABI_MINOR);
  }
  if (header.need_minor > header.built_minor) {
    reject(kBadNote, "its note says that it is built for ABI minor {} but needs minor {}", header.built_minor,
           header.need_minor);
  }
  check_needs(text_of(header.needs, sizeof header.needs, "list of extensions"));
  if (header.backend_count < 1 || header.backend_count > BP_NOTE_MAX_BACKENDS) {
    reject(kBadNote, "its note announces {} backends, not 1 to {}", header.backend_count, BP_NOTE_MAX_BACKENDS);
  }
  if (header.backend_size < sizeof(bp_note_backend) || header.backend_size > kMaxBackendSize) {
    reject(kBadNote, "its note has backend records of {} bytes, not {} to {}", header.backend_size,
           sizeof(bp_note_backend), kMaxBackendSize);
  }
  const size_t expected = kHeaderSize + size_t{header.backend_count} * header.backend_size;
  if (size != expected) {
    reject(kBadNote, "its note is {} bytes long, but {} backends of {} bytes each make {}", size, header.backend_count,
           header.backend_size, expected);
  }
}

}  // namespace

int Note::index_of(std::string_view id) const {
  for (size_t i = 0; i < backends.size(); ++i) {
    if (backends[i].id == id) return static_cast<int>(i);
  }
  return -1;
}

Note parse_note(std::span<const std::byte> description) {
  if (description.size() < kHeaderSize) {
    reject(kBadNote, "its note is {} bytes long, shorter than the header of {}", description.size(), kHeaderSize);
  }
  bp_note_header header{};
  std::memcpy(&header.magic, description.data(), kHeaderSize);
  check_header(header, description.size());

  Note note;
  note.built_minor = header.built_minor;
  note.need_minor = header.need_minor;
  for (uint32_t i = 0; i < header.backend_count; ++i) {
    auto backend = parse_backend(description.subspan(kHeaderSize + size_t{i} * header.backend_size));
    if (note.index_of(backend.id) >= 0) reject(kBadNote, "its note names backend '{}' twice", backend.id);
    note.backends.push_back(std::move(backend));
  }
  return note;
}

}  // namespace backplane::core::plugin
