// SPDX-License-Identifier: Apache-2.0
#include "common/program.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/failure.hpp"

namespace backplane::tool {
namespace {

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// 0, or the errno that prevents execution of `path`.
int execution_error(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0) return errno;
  if (is_directory(path)) return EISDIR;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

[[noreturn]] void refuse(const std::string& path, int number) {
  const bool missing = number == ENOENT || number == ENOTDIR;
  if (missing) throw Failure(kNotFound, fmt::format("program {} not found", path));
  const std::string hint = number == EACCES ? fmt::format("; chmod +x {} if it is a program", path) : "";
  throw Failure(kNotExecutable, fmt::format("{} cannot be executed: {}{}", path, errno_text(number), hint));
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (const int number = execution_error(name)) refuse(name, number);
    return name;
  }
  const char* variable = std::getenv("PATH");
  const std::string list = variable == nullptr ? "/usr/local/bin:/usr/bin:/bin" : variable;
  std::string denied;
  for (size_t begin = 0; begin <= list.size() && !name.empty();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    // An empty part is the current directory (POSIX).
    std::string path = (end == begin ? "." : list.substr(begin, end - begin)) + "/" + name;
    const int number = execution_error(path);
    if (number == 0) return path;
    if (number == EACCES && denied.empty() && ::access(path.c_str(), F_OK) == 0) denied = path;
    begin = end + 1;
  }
  if (!denied.empty()) refuse(denied, EACCES);
  throw Failure(kNotFound,
                fmt::format("program '{}' not found in PATH; write ./{} for a file in this directory", name, name));
}

std::string libexec_path(const std::string& name) {
  std::error_code ignored;
  const std::filesystem::path command = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (command.parent_path().parent_path() / "libexec" / "backplane" / name).string();
}

std::string exec_failure(const std::string& path, int number) {
  if (number == ENOEXEC) {
    return fmt::format("{} cannot be executed: {}; if it is a script, its first line must name the interpreter (#!)",
                       path, errno_text(number));
  }
  if (number == ENOENT)
    return fmt::format("{} cannot be executed: the interpreter in its first line does not exist", path);
  return fmt::format("{} cannot be executed: {}", path, errno_text(number));
}

}  // namespace backplane::tool
