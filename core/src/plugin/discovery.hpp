// SPDX-License-Identifier: Apache-2.0
//
// Finds plugins without running them. Nothing is cached: the next call sees a new file.
//
// Precedence of scan and find: backend `x` comes from the first directory with a usable `backplane_x.so` that contains
// it, else from the first other file that contains it, by directory and then by name. A rejected file hides no later
// one.
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
  std::string reason;  // kUnreadable: why; kRepeated: the path under which it was read before
};

struct FoundBackend {
  enum class State { kAvailable, kShadowed, kDenied };
  NoteBackend note;
  State state = State::kAvailable;
  std::string reason;  // kShadowed: "by PATH"; kDenied: by which variable
};

struct FoundFile {
  std::string path;
  std::string rejection;  // why the file is unusable; empty if it is usable
  Note note;              // empty if rejected
  std::vector<FoundBackend> backends;
};

struct Scan {
  std::vector<FoundDirectory> directories;  // one per directory of the search path
  std::vector<FoundFile> files;             // all `backplane_*.so`, by directory, then sorted by name
};

// The file that contains a backend.
struct Match {
  std::string path;
  Note note;
  int index = 0;  // of the backend in `note`
};

// Reads the note of every plugin file. Records problems in the result and throws none. Any thread; blocks on the disk.
Scan scan(const SearchPath& path);

// Finds the file of one backend. Opens files other than `backplane_<id>.so` only if there is no usable one of that
// name. BP_INVALID if no file contains this backend, BP_UNSUPPORTED if it must not or cannot be used; the text says
// which directories were searched and why files were rejected. Any thread; blocks on the disk.
Match find(const SearchPath& path, std::string_view id);

}  // namespace backplane::core::plugin
