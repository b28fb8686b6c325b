// SPDX-License-Identifier: Apache-2.0
#include "plugin/trusted_path.hpp"

#include <unistd.h>

#include <cerrno>
#include <deque>
#include <filesystem>
#include <system_error>

#include "error.hpp"
#include "plugin/reject.hpp"

namespace backplane::core::plugin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy = "set BACKPLANE_ALLOW_UNSAFE_PLUGINS=1 to load it anyway";

void check_owner(const struct stat& status, const std::string& what) {
  if (status.st_uid == 0 || status.st_uid == ::geteuid()) return;
  fail(BP_UNSUPPORTED, "{} belongs to user {}, who is neither root nor the user of this process (uid {}); {}", what,
       status.st_uid, ::geteuid(), kRemedy);
}

class Walk {
 public:
  explicit Walk(const fs::path& path) { follow(fs::absolute(path)); }

  void run() {
    while (!rest_.empty()) {
      const std::string name = rest_.front();
      rest_.pop_front();
      step(name);
    }
  }

 private:
  void step(const std::string& name) {
    if (name.empty() || name == ".") return;
    if (name == "..") {
      at_ = at_.parent_path();
      return;
    }
    const fs::path entry = at_ / name;
    struct stat status {};
    if (rest_.empty()) check_container();
    if (::lstat(entry.c_str(), &status) != 0) fail_errno("it cannot be examined", errno);
    if (S_ISLNK(status.st_mode)) {
      check_owner(status, fmt::format("the link {} to it", entry.native()));
      follow_link(entry);
    } else {
      at_ = entry;
      if (S_ISDIR(status.st_mode)) check_directory(status);
    }
  }

  void check_directory(const struct stat& status) const {
    if (rest_.size() == 1) return;  // check_container follows
    const std::string what = fmt::format("the directory {} above it", at_.native());
    check_owner(status, what);
    if ((status.st_mode & S_ISVTX) == 0) check_trusted(status, what);
  }

  // A sticky directory protects the entries of others from being replaced, but anyone can add a file or link to it.
  void check_container() const {
    struct stat status {};
    if (::lstat(at_.c_str(), &status) != 0) fail_errno("its directory cannot be examined", errno);
    check_trusted(status, fmt::format("its directory {}", at_.native()));
  }

  void follow_link(const fs::path& link) {
    constexpr int kMaxLinks = 40;  // as in the kernel
    std::error_code error;
    const fs::path target = fs::read_symlink(link, error);
    if (error) fail_errno("its link cannot be followed", error.value());
    if (++links_ > kMaxLinks) fail_errno("its link cannot be followed", ELOOP);
    follow(target);
  }

  // Puts the components of `path` before the rest.
  void follow(const fs::path& path) {
    if (path.is_absolute()) {
      at_ = "/";
      struct stat root {};
      if (::lstat("/", &root) != 0) fail_errno("the root directory cannot be examined", errno);
      check_directory(root);
    }
    auto position = rest_.begin();
    for (const fs::path& name : path.relative_path()) position = std::next(rest_.insert(position, name.native()));
  }

  fs::path at_ = "/";             // without links
  std::deque<std::string> rest_;  // components that follow `at_`
  int links_ = 0;
};

}  // namespace

void check_trusted(const struct stat& status, const std::string& what) {
  check_owner(status, what);
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return;
  fail(BP_UNSUPPORTED, "{} is writable by {} (mode {:04o}); remove that permission, or {}", what,
       (status.st_mode & S_IWOTH) != 0 ? "others" : "its group", status.st_mode & 07777U, kRemedy);
}

void check_trusted_path(const std::string& path) { Walk(path).run(); }

}  // namespace backplane::core::plugin
