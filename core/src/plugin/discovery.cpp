// SPDX-License-Identifier: Apache-2.0
#include "plugin/discovery.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "error.hpp"
#include "options/names.hpp"
#include "plugin/plugin_file.hpp"

namespace backplane::core::plugin {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "backplane_";
constexpr std::string_view kSuffix = ".so";

std::string file_name(std::string_view id) { return fmt::format("{}{}{}", kPrefix, id, kSuffix); }

std::string file_name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool plugin_name(std::string_view name) {
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

// The plugin files of a directory, sorted by name. Records the result in `found`.
std::vector<std::string> list(const SearchDirectory& where, FoundDirectory& found) {
  found.where = where;
  std::vector<std::string> paths;
  std::error_code error;
  fs::directory_iterator entry(where.path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (plugin_name(entry->path().filename().native())) paths.push_back(entry->path().string());
  }
  if (error == std::errc::no_such_file_or_directory) {
    found.state = FoundDirectory::State::kMissing;
  } else if (error) {
    found.state = FoundDirectory::State::kUnreadable;
    found.reason = error.message();
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

FoundFile examine(const std::string& path, const Policy& policy) {
  FoundFile file{path, {}, {}, {}};
  try {
    file.note = read_plugin_file(path, policy.allow_unsafe);
  } catch (const std::exception& e) {
    file.rejection = e.what();
    return file;
  }
  for (const auto& backend : file.note.backends) {
    std::string objection = policy.objection(backend.id);
    const auto state = objection.empty() ? FoundBackend::State::kAvailable : FoundBackend::State::kDenied;
    file.backends.push_back({backend, state, std::move(objection)});
  }
  return file;
}

// Marks all but the file with the highest precedence for each id.
void mark_shadowed(std::vector<FoundFile>& files) {
  std::map<std::string, const FoundFile*> winners;
  for (const bool own : {true, false}) {
    for (const auto& file : files) {
      for (const auto& backend : file.backends) {
        if (backend.state != FoundBackend::State::kAvailable) continue;
        if (!own || file_name_of(file.path) == file_name(backend.note.id)) winners.emplace(backend.note.id, &file);
      }
    }
  }
  for (auto& file : files) {
    for (auto& backend : file.backends) {
      if (backend.state != FoundBackend::State::kAvailable || winners.at(backend.note.id) == &file) continue;
      backend.state = FoundBackend::State::kShadowed;
      backend.reason = fmt::format("by {}", winners.at(backend.note.id)->path);
    }
  }
}

// A search for one backend, with what it found on the way.
class Search {
 public:
  Search(const SearchPath& path, std::string_view id) : path_(path), id_(id), own_name_(file_name(id)) {}

  Match run() {
    Match match;
    for (const auto& directory : path_.directories) {
      const std::string candidate = fmt::format("{}/{}", directory.path, own_name_);
      struct stat status {};
      if (::lstat(candidate.c_str(), &status) == 0 && try_file(candidate, match)) return match;
    }
    for (const auto& directory : path_.directories) {
      FoundDirectory found;
      for (const auto& candidate : list(directory, found)) {
        if (file_name_of(candidate) != own_name_ && try_file(candidate, match)) return match;
      }
      note_directory(found);
    }
    fail_not_found();
  }

 private:
  bool try_file(const std::string& path, Match& match) {
    try {
      Note note = read_plugin_file(path, path_.policy.allow_unsafe);
      const int index = note.index_of(id_);
      if (index >= 0) {
        match = {path, std::move(note), index};
        return true;
      }
      if (file_name_of(path) == own_name_) rejected_ += fmt::format("; {}: it has no backend '{}'", path, id_);
    } catch (const std::exception& e) {
      if (file_name_of(path) == own_name_) {
        rejected_ += fmt::format("; {}: {}", path, e.what());
      } else {
        ++others_rejected_;
      }
    }
    return false;
  }

  void note_directory(const FoundDirectory& found) {
    looked_ += fmt::format("{}{}", looked_.empty() ? "" : ", ", found.where.path);
    if (found.state == FoundDirectory::State::kMissing) looked_ += " (missing)";
    if (found.state == FoundDirectory::State::kUnreadable) looked_ += fmt::format(" ({})", found.reason);
  }

  [[noreturn]] void fail_not_found() const {
    const std::string others =
        others_rejected_ == 0 ? "" : fmt::format("; {} other plugin files were rejected", others_rejected_);
    if (!rejected_.empty()) {
      fail(BP_UNSUPPORTED, "no usable plugin for backend '{}'{}{}; looked in {}", id_, rejected_, others, looked_);
    }
    fail(BP_INVALID, "no plugin for backend '{}'{}; looked in {}", id_, others, looked_);
  }

  const SearchPath& path_;
  const std::string_view id_;
  const std::string own_name_;
  std::string rejected_;  // "; PATH: reason" for each file named after the backend
  int others_rejected_ = 0;
  std::string looked_;
};

}  // namespace

Scan scan(const SearchPath& path) {
  Scan result;
  std::map<std::pair<uint64_t, uint64_t>, std::string> seen;  // directories by device and inode
  for (const auto& directory : path.directories) {
    FoundDirectory found{directory, FoundDirectory::State::kRead, {}};
    if (const auto id = identify(directory.path)) {
      const auto [first, fresh] = seen.emplace(std::pair(id->device, id->inode), directory.path);
      if (!fresh) {
        found.state = FoundDirectory::State::kRepeated;
        found.reason = first->second;
        result.directories.push_back(std::move(found));
        continue;
      }
    }
    for (const auto& file : list(directory, found)) result.files.push_back(examine(file, path.policy));
    result.directories.push_back(std::move(found));
  }
  mark_shadowed(result.files);
  return result;
}

Match find(const SearchPath& path, std::string_view id) {
  if (!valid_id(id)) {
    fail(BP_INVALID, "{} is not a valid backend name; use 1 to 32 of a-z, 0-9, _ and -",
         printable(id) && id.size() < 200 ? fmt::format("'{}'", id) : "this");
  }
  if (const std::string objection = path.policy.objection(id); !objection.empty()) {
    fail(BP_UNSUPPORTED, "it is {}", objection);
  }
  return Search(path, id).run();
}

}  // namespace backplane::core::plugin
