// SPDX-License-Identifier: Apache-2.0
//
// The ELF note of a plugin (abi/note.h), decoded and checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace backplane::core::plugin {

// Equal if a path still names the same file with the same content.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;

  bool operator==(const FileId&) const = default;
};

struct NoteBackend {
  std::string id;
  std::string version;
  uint32_t kinds = 0;  // mask of BP_KIND_...
  uint32_t flags = 0;  // mask of BP_BACKEND_...
  uint64_t ops = 0;    // mask of BP_BIT(BP_SEND) ...
};

struct Note {
  uint32_t built_minor = 0;
  uint32_t need_minor = 0;
  std::vector<NoteBackend> backends;  // at least one
  FileId file;                        // all zero if the note was read from memory

  // Position of a backend by id, -1 if absent.
  int index_of(std::string_view id) const;
};

// Decodes the description of a Backplane note, from `magic` on. BP_UNSUPPORTED if the plugin needs another version of
// the core, BP_INVALID if the note is malformed.
Note parse_note(std::span<const std::byte> description);

}  // namespace backplane::core::plugin
