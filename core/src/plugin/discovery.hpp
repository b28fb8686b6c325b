// SPDX-License-Identifier: Apache-2.0
//
// Finds plugins without running them. Nothing is cached: a file dropped in is seen by the next call.
//
// PRECEDENCE, the same for scan and find. A backend `x` is taken from the first directory that has a sound
// `backplane_x.so` which carries it; if there is none, from the first other file that carries it, in the order of
// directories and of names within one. A rejected file never hides a later one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plugin/note.hpp"
#include "plugin/search_path.hpp"

namespace backplane::core::plugin {

struct FoundDirectory {
  enum class State { kRead, kMissing, kUnreadable, kRepeated };
  SearchDirectory where;
  State state = State::kRead;
  std::string reason;  // kUnreadable: why; kRepeated: the path under which it was read already
};

struct FoundBackend {
  enum class State { kAvailable, kShadowed, kDenied };
  NoteBackend note;
  State state = State::kAvailable;
  std::string reason;  // kShadowed: "by PATH"; kDenied: by which list
};

struct FoundFile {
  std::string path;
  std::string rejection;  // why it is no usable plugin; empty if it is one
  Note note;              // empty if rejected
  std::vector<FoundBackend> backends;
};

struct Scan {
  std::vector<FoundDirectory> directories;  // one per directory of the search path
  std::vector<FoundFile> files;             // all `backplane_*.so`, by directory, then sorted by name
};

// A file to load a backend from.
struct Match {
  std::string path;
  Note note;
  int index = 0;  // of the backend in `note`
};

// Reads the note of every plugin file. Problems are recorded in the result, not thrown. [any], blocks on the disk.
Scan scan(const SearchPath& path);

// Finds the file of one backend, opening others than `backplane_<id>.so` only if that yields nothing. Throws
// core::Error: BP_INVALID if no file has this backend, BP_UNSUPPORTED if one was there but may not be used; the text
// says where it looked and what was wrong. [any], blocks on the disk.
Match find(const SearchPath& path, std::string_view id);

}  // namespace backplane::core::plugin
