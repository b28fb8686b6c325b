// SPDX-License-Identifier: Apache-2.0
#include "file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "backplane/base/descriptor.hpp"
#include "backplane/sdk/failure.hpp"

namespace backplane::trace {
namespace {

// The paths that groups of this process write to.
struct UsedPaths {
  std::mutex mutex;
  std::set<std::string> paths;
};

UsedPaths& used_paths() {
  static UsedPaths* const instance =
      new UsedPaths;  // never destroyed: other threads may use it while the process exits
  return *instance;
}

std::string file_name_part(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    result.push_back(plain || c == '.' || c == '_' || c == '-' ? c : '_');
  }
  return result;
}

std::string expand(std::string_view pattern, int32_t rank, int32_t world_size, std::string_view group) {
  std::string result;
  bool has_rank = world_size == 1;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      result.push_back(pattern[i]);
      continue;
    }
    const char what = ++i < pattern.size() ? pattern[i] : '\0';
    if (what == 'r') {
      result += std::to_string(rank);
      has_rank = true;
    } else if (what == 'g') {
      result += file_name_part(group);
    } else if (what == '%') {
      result.push_back('%');
    } else {
      throw sdk::Failure(BP_INVALID, fmt::format("trace: the path '{}' has a % at position {} that is not part of %r "
                                                 "(rank), %g (group) or %%",
                                                 pattern, i));
    }
  }
  if (!has_rank) result += "." + std::to_string(rank);
  return result;
}

[[noreturn]] void cannot_write(const std::string& path, int error) {
  throw sdk::Failure(BP_RESOURCE, fmt::format("trace: cannot write {}: {}", path, std::strerror(error)), -1, error);
}

bool write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

OutputPath::OutputPath(std::string_view pattern, int32_t rank, int32_t world_size, std::string_view group) {
  const std::string path = expand(pattern, rank, world_size, group);
  const std::lock_guard lock(used_paths().mutex);
  text_ = path;
  for (int number = 2; !used_paths().paths.insert(text_).second; ++number) text_ = fmt::format("{}.{}", path, number);
}

OutputPath::~OutputPath() {
  const std::lock_guard lock(used_paths().mutex);
  used_paths().paths.erase(text_);
}

void OutputPath::write(std::string_view content) const {
  const std::string temporary = fmt::format("{}.tmp{}", text_, getpid());
  ::unlink(temporary.c_str());  // of an earlier process with this number
  base::Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) cannot_write(text_, errno);
  int error = write_all(file.get(), content) ? 0 : errno;
  if (::close(file.release()) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), text_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    cannot_write(text_, error);
  }
}

}  // namespace backplane::trace
